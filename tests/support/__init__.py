"""
What tests share.

`plugins`: fixtures and servers. `harness`: runs a pipeline, plays a workload, compares with the
source. `reference`: plain implementations of the same definitions, and generators of input. `lake`:
processes that write or read a lake. `wire_samples`: bytes that real servers sent.
"""
