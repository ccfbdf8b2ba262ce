"""What the engine runs on: the jars it loads and the Java that loads them. Knows no Postgres."""
