"""Private servers for the demo and the tests; the engine does not import them."""
