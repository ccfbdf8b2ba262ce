"""
Deletion vectors: which rows of a data file are not rows of the table any more.

Read and written by Delta's own classes in the JVM, so their format is Delta's; row numbers cross
over as bytes, not one by one. No commit is made here.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Deletion Vectors)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from py4j.java_gateway import JavaGateway

from pgstream_dagster.delta import uri
from pgstream_dagster.delta.jvm import Java

RowNumbers = npt.NDArray[np.int64]
"""Rows of one file, from 0, ascending."""

NONE: Final[RowNumbers] = np.empty(0, np.int64)

_IN_JAVA: Final = ">i8"  # a buffer of Java has the most significant byte first


@lru_cache(maxsize=1)
def _java(gateway: JavaGateway) -> _Java:
    """The classes of this JVM: to find one takes a call for each part of its name."""
    return _Java(gateway)


class _Java:
    """What is used of Delta, which marks it as its own, and of Java."""

    def __init__(self, gateway: JavaGateway) -> None:
        jvm = cast("Java", gateway.jvm)
        delta, java = jvm.org.apache.spark.sql.delta, jvm.java
        self.bitmap = delta.deletionvectors.RoaringBitmapArray
        self.format = delta.deletionvectors.RoaringBitmapArrayFormat.Portable()
        self.stored = delta.deletionvectors.DeletionVectorStoredBitmap
        self.descriptor = delta.actions.DeletionVectorDescriptor
        self.file_system = delta.util.PathWithFileSystem
        self.store = delta.storage.dv.HadoopFileSystemDVStore
        self.path = jvm.org.apache.hadoop.fs.Path
        self.option = jvm.scala.Option
        self.unsafe_array = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray
        self.uuid = java.util.UUID
        self.buffer = java.nio.ByteBuffer
        self.little_endian = java.nio.ByteOrder.LITTLE_ENDIAN
        self.file = java.io.RandomAccessFile
        self.long = jvm.long


class _Passage:
    """
    Bytes between Python and Java, by way of a file.

    Their socket is slow for more than 8 kB: Java writes those in parts, and the system holds a part
    back until the one before it is acknowledged (Nagle's algorithm).
    """

    def __init__(self, java: _Java) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="pgstream-")  # noqa: SIM115
        self._channel = java.file(self._file.name, "rw").getChannel()
        self._buffer = java.buffer

    def close(self) -> None:
        """Remove the file."""
        self._channel.close()
        self._file.close()

    def from_java(self, buffer: Java) -> bytes:
        """What is in a buffer, from its position on."""
        return os.pread(self._file.fileno(), self._channel.write(buffer, 0), 0)

    def to_java(self, data: bytes) -> Java:
        """A buffer with these bytes."""
        os.pwrite(self._file.fileno(), data, 0)
        buffer = self._buffer.allocate(len(data))
        self._channel.read(buffer, 0)
        return buffer.rewind()


class DeletionVectors:
    """Those of one table, with the configuration of Kernel's engine; to be closed."""

    def __init__(self, gateway: JavaGateway, table: str, hadoop: Java) -> None:
        self._gateway, self._table, self._hadoop = gateway, table, hadoop
        self._java = _java(gateway)
        self._store = self._java.store(hadoop)
        self._folder = self._java.path(table)
        self._none = self._java.option.apply(None)
        self._passage = _Passage(self._java)

    def close(self) -> None:
        """End what a table's vectors went through."""
        self._passage.close()

    def read(self, descriptor: Mapping[str, Any] | None) -> RowNumbers:
        """The rows that the `deletionVector` of an `add` action marks; none for `None`."""
        if descriptor is None:
            return NONE
        java, count = self._java, int(descriptor["cardinality"])
        stored = java.stored(
            java.descriptor(
                descriptor["storageType"],
                descriptor["pathOrInlineDv"],
                java.option.apply(descriptor.get("offset")),
                descriptor["sizeInBytes"],
                count,
                self._none,
            ),
            java.option.apply(self._folder),
        )
        rows = stored.load(self._store).values()
        buffer = java.buffer.allocate(8 * count)
        buffer.asLongBuffer().put(rows)
        return np.frombuffer(self._passage.from_java(buffer), _IN_JAVA).astype(np.int64)

    def write(self, marked: Sequence[RowNumbers]) -> tuple[list[dict[str, Any]], list[str]]:
        """
        Write one file with a vector for each of `marked`, none of which is empty; not synced.

        Shape:
            result: the vectors as an `add` action has them, and the URIs of what was written.
        """
        if not marked:
            return [], []
        id_ = self._java.uuid.randomUUID()
        there = self._java.file_system.withConf(self._folder, self._hadoop)
        path = self._store.generateFileNameInTable(there, id_, "")
        with closing(self._store.createWriter(path)) as file:
            vectors = [self._written(file, id_, rows) for rows in marked]
        name = str(path.path().getName())
        return vectors, [uri.child(self._table, name)]

    def _written(self, file: Java, id_: Java, rows: RowNumbers) -> dict[str, Any]:
        data = self._serialized(rows)
        place = file.write(data)
        offset, size = int(place.offset()), len(data)
        vector = self._java.descriptor.onDiskWithRelativePath(
            id_, "", size, len(rows), self._java.option.apply(offset), self._none
        )
        return {
            "storageType": vector.storageType(),
            "pathOrInlineDv": vector.pathOrInlineDv(),
            "offset": offset,
            "sizeInBytes": size,
            "cardinality": len(rows),
        }

    def _serialized(self, rows: RowNumbers) -> bytes:
        java = self._java
        numbers = self._gateway.new_array(java.long, len(rows))
        self._passage.to_java(rows.astype(_IN_JAVA).tobytes()).asLongBuffer().get(numbers)
        bitmap = java.bitmap()
        bitmap.addAll(java.unsafe_array(numbers))
        bitmap.runOptimize()
        buffer = java.buffer.allocate(bitmap.serializedSizeInBytes(java.format))
        buffer.order(java.little_endian)
        bitmap.serialize(buffer, java.format)
        return self._passage.from_java(buffer.rewind())
