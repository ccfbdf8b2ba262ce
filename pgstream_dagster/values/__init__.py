"""
Values of Postgres as JSON: their text goes in, JSON comes out. No I/O.

Shared by everything that writes JSON for other systems: search documents and the messages of sinks;
its table of types (`types`) by typed tables too. May import nothing of the package. Read `types`,
`kinds`, `renderings`, `render`; `exact` is for messages, and `columns` for many values at once.
`raw_json` takes JSON apart without changing it.
"""
