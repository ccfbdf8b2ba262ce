"""
What tests share.

`plugins`: fixtures and servers; `harness`: run a pipeline, play a workload, compare with the source;
`reference`: plain implementations of the same definitions, and generators of input; `lake`:
processes that write or read a lake; `wire_samples`: bytes that real servers sent.
"""
