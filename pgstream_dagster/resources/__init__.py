"""
How to reach things, as resources of Dagster: the source, the lake, the search cluster.

Fields of a run's configuration go in, a `Pipeline` comes out. `postgres` also has the life of the
slot: check, setup, resnapshot, teardown. May import `upkeep` and below, and `dagster`. Read
`pipeline`.
"""
