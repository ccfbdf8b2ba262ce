"""
From the change log to tables: the current rows, the changes by day, the versions of the schema.

The log goes in; Spark DataFrames, partitions of a Delta table and schema versions come out. May
import `readers` and below. Read `read`, `daily_changes`, `schema_history`.
"""
