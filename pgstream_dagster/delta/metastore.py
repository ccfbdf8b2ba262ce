"""
A Hive metastore: names for Delta tables, by which Spark and Trino find them. Knows no pipeline.

Names and URIs go in. What is registered has no columns: readers take them from the log of the Delta
table, so a registration stays true whatever happens to the table. Other tables are never changed.
The client is the one in Spark's jars, in the JVM of this process.

Source:
    https://github.com/apache/hive/blob/rel/release-2.3.10/metastore/if/hive_metastore.thrift
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final, cast

from py4j.java_gateway import JavaClass, JavaGateway
from py4j.protocol import Py4JJavaError

from pgstream_dagster.delta import uri
from pgstream_dagster.delta.jvm import Java
from pgstream_dagster.delta.kernel import class_name, kernel
from pgstream_dagster.errors import MetastoreNameTaken, MetastoreRefused, MetastoreUnavailable

ANSWER_SECONDS: Final = 30
"""Hive waits ten minutes; here the merges of all tables wait meanwhile."""

PROVIDER: Final = "spark.sql.sources.provider"
"""The parameter of a table that says what it is, to Spark and to Trino."""

PATH: Final = "path"
"""The parameter of its serde with the table's URI."""

FORMAT: Final = {
    "input": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "output": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
    "serde": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
}
"""What Spark and Trino write for a table of Delta; nothing reads with it."""

COLUMN: Final = ("col", "array<string>", "from deserializer")
"""What Spark writes for a table whose columns are elsewhere: some servers want at least one."""

_ABSENT: Final = "NoSuchObjectException"
_EXISTS: Final = "AlreadyExistsException"

_ANSWERS: Final = frozenset({_ABSENT, _EXISTS, "MetaException", "InvalidObjectException"})
"""What the calls here declare: the connection is as good as before."""


class Metastore:
    """One database of a metastore, which is made if it is not there; one thread uses it."""

    def __init__(self, gateway: JavaGateway, client: Java, address: str, database: str) -> None:
        hive = cast("Java", gateway.jvm).org.apache.hadoop.hive.metastore
        self._api, self._java = hive.api, cast("Java", gateway.jvm).java.util
        self._client, self._address, self._database = client, address, database

    def register(self, name: str, table: str, location: str) -> bool:
        """
        Give the Delta table at a URI this name; whether it had to be done.

        Shape:
            table: what an error calls the Delta table.

        Raises:
            MetastoreNameTaken: another table has the name.
            MetastoreRefused: the metastore does not take this table; the next may be asked for.
            MetastoreUnavailable: no answer in time.
        """
        with _named_failures(self._address), self._named_refusal(name, table):
            existing = self._existing(name)
            if existing is None and self._created(name, location):
                return True
            existing = existing or self._existing(name)
        if existing is None or not _is_of(existing, location):
            place = "another one" if existing is None else f"a table at {_location(existing)}"
            raise MetastoreNameTaken(f"{self._database}.{name}", table, place)
        return False

    @contextmanager
    def _named_refusal(self, name: str, table: str) -> Generator[None]:
        try:
            yield
        except Py4JJavaError as error:
            if class_name(error) not in _ANSWERS:
                raise
            full_name = f"{self._database}.{name}"
            raise MetastoreRefused(full_name, table, _reason(error)) from error

    def _existing(self, name: str) -> Java | None:
        try:
            return self._client.getTable(self._database, name)
        except Py4JJavaError as error:
            if class_name(error) == _ABSENT:
                return None
            raise

    def _created(self, name: str, location: str) -> bool:
        """Create the table, and its database before; false if another process has."""
        with _named_failures(self._address):  # of a database that is refused: of all tables
            self._create_database()
        try:
            self._client.createTable(self._table(name, location))
        except Py4JJavaError as error:
            if class_name(error) == _EXISTS:
                return False
            raise
        return True

    def _create_database(self) -> None:
        try:
            self._client.getDatabase(self._database)
        except Py4JJavaError as error:
            if class_name(error) != _ABSENT:
                raise
            database = self._api.Database()
            database.setName(self._database)
            database.setDescription("Typed tables of pgstream")
            try:
                self._client.createDatabase(database)
            except Py4JJavaError as error:
                if class_name(error) != _EXISTS:
                    raise

    def _table(self, name: str, location: str) -> Java:
        table = self._api.Table()
        table.setDbName(self._database)
        table.setTableName(name)
        table.setTableType("EXTERNAL_TABLE")
        table.setSd(self._storage(location))
        table.setPartitionKeys(self._java.ArrayList())
        parameters = self._java.HashMap()
        parameters.put("EXTERNAL", "TRUE")  # without it a server makes it a managed table
        parameters.put(PROVIDER, "delta")
        parameters.put("DO_NOT_UPDATE_STATS", "true")  # it would count files of all versions
        table.setParameters(parameters)
        return table

    def _storage(self, location: str) -> Java:
        storage, serde = self._api.StorageDescriptor(), self._api.SerDeInfo()
        serde.setSerializationLib(FORMAT["serde"])
        parameters, columns = self._java.HashMap(), self._java.ArrayList()
        parameters.put(PATH, location)
        serde.setParameters(parameters)
        columns.add(self._api.FieldSchema(*COLUMN))
        storage.setCols(columns)
        storage.setLocation(location)
        storage.setInputFormat(FORMAT["input"])
        storage.setOutputFormat(FORMAT["output"])
        storage.setSerdeInfo(serde)
        return storage


@contextmanager
def connected(gateway: JavaGateway, address: str, database: str) -> Generator[Metastore]:
    """
    A database of the metastore at an address, `thrift://host:port` or several.

    Raises:
        MetastoreUnavailable: no connection.
    """
    jvm = cast("Java", gateway.jvm)
    client_class = jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient
    if not isinstance(client_class, JavaClass):
        raise MetastoreUnavailable(address, "the Spark of SPARK_HOME lacks the jars of Hive")
    with _named_failures(address):
        conf = jvm.org.apache.hadoop.hive.conf.HiveConf()
        conf.addResource(kernel(gateway).hadoop)
        conf.set("hive.metastore.uris", address)
        conf.set("hive.metastore.connect.retries", "1")
        conf.set("hive.metastore.client.connect.retry.delay", "0s")
        conf.set("hive.metastore.client.socket.timeout", f"{ANSWER_SECONDS}s")
        client = cast("Java", client_class(conf))
    try:
        yield Metastore(gateway, client, address, database)
    finally:
        with suppress(Py4JJavaError):
            client.close()


def _is_of(table: Java, location: str) -> bool:
    """Whether a table of the metastore is the Delta table at a URI."""
    provider = str(table.getParameters().get(PROVIDER))
    return provider.lower() == "delta" and _location(table) == location


def _location(table: Java) -> str:
    storage = table.getSd()
    place = storage.getSerdeInfo().getParameters().get(PATH) or storage.getLocation()
    return uri.absolute(str(place)) if place else "no place"


@contextmanager
def _named_failures(address: str) -> Generator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise MetastoreUnavailable(address, _reason(error)) from error


def _reason(error: Py4JJavaError) -> str:
    message = str(cast("Java", error.java_exception).getMessage()).partition("\n")[0]
    return f"{class_name(error)}: {message}"
