"""
From a table to the change log, as one snapshot of Postgres shows it.

Published tables and an exported snapshot go in; one commit per table comes out, read by Spark tasks
over ranges of pages. May import `source` and below. Read `snapshot`, `copying`, `copy_plan`,
`scan`.
"""
