"""
Bytes that Postgres sends, as columns of the change log. Pure: opens no socket, does no I/O.

Messages of pgoutput and rows of a binary COPY go in; Arrow columns come out, without Python per
value. May import `schema` and below. Read `pgoutput`, `messages`, `columns`, `images`, `ragged`,
then `copy_rows`.
"""
