"""
What Dagster shows of a pipeline: assets, their metadata, and how often a long run reports.

Operations go in, assets and ops come out. Whatever a test without Dagster would want to test is
decided elsewhere. May import `resources` and below, and `dagster`. Read `names`, then `landing`,
`snapshot`, `search`, `sinks`, `tables`.
"""
