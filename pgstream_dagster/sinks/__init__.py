"""
From the change log to other systems: Kafka, files, the standard output, and sinks of others.

Batches of changes go in, in the order of their positions; each sink delivers them to its target.
May import `readers` and below; siblings (`search`, `tables`) are not imported. Read `base`,
`follow`, then a sink.
"""
