"""
What a table looked like, and what a row of the change log looks like. No I/O.

May import `patterns` and `lsn`. Read `table` and `align` for versions of a table, `layout` and
`changes` for the log.
"""
