"""
Messages to streams of NATS JetStream.

Batches of changes go in; they are delivered when the server has acknowledged every message. Read
`sink`, then `session`.
"""
