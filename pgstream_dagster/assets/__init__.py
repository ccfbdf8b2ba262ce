"""
What Dagster shows of a pipeline: assets, their metadata, and how often a long run reports.

Operations go in, assets and ops come out. Nothing is decided here that a test without Dagster would
want. Read `names`, then `landing`, `snapshot`, `search`.
"""
