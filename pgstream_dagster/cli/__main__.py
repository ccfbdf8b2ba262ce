"""`python -m pgstream_dagster.cli`: the command line without the console script."""

from pgstream_dagster.cli.run import main

main()
