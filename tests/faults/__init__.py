"""
Faults of network, disks, processes and servers, against `pgstream` as users run it.

`scenarios` says what is done and what is expected, and does it; `site` is where: a source under
load, a network that can be broken, processes. `python -m tests.faults` plays them all, and
`page` writes docs/guides/what-happens-when.md from them.
"""
