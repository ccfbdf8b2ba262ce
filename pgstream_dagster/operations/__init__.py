"""
One function for each thing a user can ask for; `cli` and Dagster call the same ones.

A `Pipeline` goes in, a plain result comes out. Source, change log and search meet here; Dagster is
not imported. Read `pipeline`, `setup`, `stream`, `keeper`, `copying`, then `index`, `reindex`.
"""
