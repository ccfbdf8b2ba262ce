"""A project with assets of its own that takes in pipelines of pgstream_dagster."""
