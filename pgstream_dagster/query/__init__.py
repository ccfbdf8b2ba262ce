"""
A SELECT goes in; the rows of the lake's tables come out, by DuckDB in this process, without a JVM.

May import `pipeline` and what is below it; the only folder that imports `duckdb`. Nothing that is
queried writes, or reads a file outside of the lake. Read `names`, `catalog`, `statement`, `engine`,
`rendering`, then `query`.
"""
