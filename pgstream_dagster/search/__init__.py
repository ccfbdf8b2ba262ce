"""
The log as search indices: documents, mappings, generations behind aliases.

Batches and folds of the log go in; requests to the cluster come out. Never asks the source. Read
`generations`, `control`, `fields`, `batch`, `indexer`, then `build` and `verify`.
"""
