"""
Messages to queues of Amazon SQS, or of what speaks its protocol.

Batches of changes go in; they are delivered when SQS has accepted every message. Read `sink`, then
`failures`.
"""
