"""
Private servers for the demo and the tests; the engine does not import them.

Locked jars go in; running servers come out, which end with their process. May import `runtime` and
below. Read `processes`, then a server.
"""
