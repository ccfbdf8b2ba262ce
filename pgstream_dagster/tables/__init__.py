"""
From the change log to tables: current rows, typed tables, changes by day, versions of the schema.

The log goes in; Spark DataFrames, Delta tables and schema versions come out. May import `readers`
and below. Read `read`, `daily_changes`, `schema_history`; of typed columns `forms`, `casts`,
`types`, `widening`; of typed tables `assignment`, `kept`, `columns`, `evolution`, `recast`,
`holding`, `approval`, `increment`, `physical`, `locate`, `direct`, `building`, `target`,
`relations`, `passes`, `histories`, `new_rows`, `registration`, `merge`, `run`, `status`,
`canonical`, `read_typed`.
"""
