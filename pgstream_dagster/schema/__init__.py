"""
What a table looked like, and what a row of the change log looks like. No I/O.

May import `errors`, `patterns` and `lsn`. Read `table` and `align` for versions of a table, `ddl`
for reports of DDL, `layout` and `changes` for the log.
"""
