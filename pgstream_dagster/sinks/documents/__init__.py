"""
Messages as documents of OpenSearch or Elasticsearch, under their ids.

Batches of changes go in; they are delivered when the cluster has accepted every document. Rows as
documents are another thing: the folder `search` makes these. Read `sink`, then `answers`.
"""
