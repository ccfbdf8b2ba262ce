"""
Changes as records of Kafka topics.

Batches of changes go in, records come out, acknowledged by all in-sync replicas; with
`exactly_once` in one transaction with the progress. Read `sink`, `messages`, `keys`, `topics`.
"""
