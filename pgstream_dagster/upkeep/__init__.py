"""
A pipeline as a whole: setting it up, looking after it, and taking it down.

A `Pipeline` goes in, a plain result comes out; the command line and Dagster call the same
functions. May import every other part of the engine. Read `setup`, `status`, `reconcile`,
`reconcile_tables`, `resnapshot`, `teardown`.
"""
