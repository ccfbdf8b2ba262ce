"""
Modifiers: what happens to the columns of rows before they are in the log, and on their way out.

Changes and the rules of the pipeline file go in; the same changes come out with their columns
transformed or left out, in before, after, key and old key alike: for one sink as objects
(`modifiers`), for the log as Arrow tables (`rows`). The same value and key always give
the same result, so that a replay writes the same bytes and a join still joins. Errors never hold a
value. Everything here is pure except `anonymizer`, which asks a server.

May import `changelog` and below. Read `modifiers`, `table`, `rows`, `check`, then `transform` and
what it is made of.
"""

from pgstream_dagster.modifiers.modifiers import Modifiers

__all__ = ["Modifiers"]
