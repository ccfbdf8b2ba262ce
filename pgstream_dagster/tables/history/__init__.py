"""
Histories of tables: every version of every row, from the first copy on (SCD type 2).

The log goes in; a Delta table per table of the source comes out, kept current with the typed
tables. May import `tables` and below. Read `columns`, `lineage`, `periods`, `versions`,
`continued`, `build`, `increment`, `target`, `merge`; to read a table as it was, `as_of`.
"""
