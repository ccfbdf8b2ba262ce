"""`python -m pgstream_dagster.cli`: the command line where the console script is not installed."""

from pgstream_dagster.cli.run import main

main()
