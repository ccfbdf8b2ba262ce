"""
From the change log to tables: the current rows, and the changes by day.

The log goes in; Spark DataFrames and partitions of a Delta table come out. May import `readers` and
below. Read `read`, `daily_changes`; of typed columns `forms`, `casts`, `types`, and `widening`.
"""
