import sqlite3

from pgstream_dagster import ChangeBatch, Envelope, Section, SinkContext, Verdicts
from pgstream_dagster.errors import SinkUnreachable


class Settings(Section):
    file: str


class SqliteSink:
    """Changes in a file of SQLite. Delivered: committed, in one transaction with the cursor."""

    Settings = Settings
    keeps_cursor = True

    def __init__(self, settings: Settings, context: SinkContext) -> None:
        self.file, self.sink = settings.file, context.sink
        self.message = Envelope(context.pipeline)

    def open(self) -> str | None:
        self.db = sqlite3.connect(self.file)
        self.db.execute("create table if not exists changes (event_id primary key, message)")
        self.db.execute("create table if not exists progress (sink primary key, cursor)")
        query = "select cursor from progress where sink = ?"
        return next((cursor for (cursor,) in self.db.execute(query, [self.sink])), None)

    def deliver(self, batch: ChangeBatch) -> Verdicts:
        rows = [(change.event_id, self.message(change)) for change in batch.changes]
        progress = [self.sink, batch.cursor]
        try:
            with self.db:  # a transaction
                self.db.executemany("insert into changes values (?, ?)", rows)
                self.db.execute("insert or replace into progress values (?, ?)", progress)
        except sqlite3.OperationalError as error:  # locked, or the disk is full
            raise SinkUnreachable(self.sink, str(error)) from error
        return {}

    def close(self) -> None:
        self.db.close()
