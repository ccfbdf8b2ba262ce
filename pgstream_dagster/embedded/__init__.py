"""Private servers for the demo and the tests; nothing of the engine imports this."""
