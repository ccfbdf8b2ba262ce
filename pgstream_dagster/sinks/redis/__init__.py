"""
Messages as entries of Redis streams, or as values of keys.

Batches of changes go in; they are delivered when the server has answered. Read `sink`, then
`streams` or `keys`; `failures` names what goes wrong.
"""
