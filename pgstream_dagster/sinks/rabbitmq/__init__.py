"""
Messages to exchanges and queues of RabbitMQ.

Batches of changes go in; they are delivered when the server has confirmed every message. Read
`sink`, then `session`; `failures` names what goes wrong.
"""
