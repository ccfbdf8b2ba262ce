"""What the engine runs on: locked jars, and a Java to load them. Independent of Postgres."""
