"""
Changes that another pipeline wrote to Kafka, into the log of this one.

Records of topics go in; commits of the log come out, with the offsets in them. Any number of
processes, each with some of the partitions. May import `sinks` and below. Read `consume`,
`records`, `batch`.
"""
