"""
From the change log to search indices: documents, mappings, generations behind aliases.

Batches and folds of the log go in; requests to the cluster come out. Never queries the source. May
import `readers` and below. Read `session`, `index`, `indexer`, `batch`, `generations`, `control`,
then `reindex`, `build` and `verify`.
"""
