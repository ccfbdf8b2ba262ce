"""
What a table looked like, and what a row of the change log looks like. No I/O.

May import `patterns`, `errors` and `lsn`. Read `table` and `align` for versions of a table,
`difference` for what differs between two, `ddl` for what the source reports, `layout` and `changes`
for the log.
"""
