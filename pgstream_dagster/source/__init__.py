"""
The way to Postgres: sessions, slot, publication and catalog; the stream and the scan.

Bytes go in, columns of changes come out. Knows nothing of Delta. Read `connect`, `slot`, `stream`,
`transactions`, `decoding`, `columns`; for copies `snapshot`, `copy_plan`, `scan`.
"""
