"""
The transactional outbox on the source: subscriptions, the triggers made of them, and events.

A session with the source goes in; schema `pgstream` of it, findings and plain results come out. The
work is done by the SQL of `sql/outbox/`, which writes the triggers; nothing here sees an event.
May import `source` and below. Read `install`, `check`, `days`, `maintain`,
`importer`, `owner`.
"""
