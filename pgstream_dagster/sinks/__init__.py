"""
From the change log to Kafka, webhooks, another Postgres, files, and sinks of installed packages.

Batches of changes go in, in the order of their positions; each sink delivers them to its target.
May import `readers` and below; siblings (`search`, `tables`) are not imported. Read `base`, `run`,
`follow`, `delivery`, then a sink; `envelope` is our message, and `columns` renders many at once.
"""
