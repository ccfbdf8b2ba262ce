"""
Deletion vectors: which rows of a data file are not rows of the table any more.

Read and written by Delta's own classes in the JVM, so their format is Delta's; row numbers cross
over as bytes, not one by one. No commit is made here.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Deletion Vectors)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
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


class DeletionVectors:
    """Those of one table, with the configuration of Kernel's engine."""

    def __init__(self, gateway: JavaGateway, table: str, hadoop: Java) -> None:
        jvm = cast("Java", gateway.jvm)
        delta = jvm.org.apache.spark.sql.delta
        self._gateway, self._jvm, self._table = gateway, jvm, table
        self._bitmap = delta.deletionvectors.RoaringBitmapArray
        self._format = delta.deletionvectors.RoaringBitmapArrayFormat.Portable()
        self._stored = delta.deletionvectors.DeletionVectorStoredBitmap
        self._descriptor = delta.actions.DeletionVectorDescriptor
        self._with_file_system = delta.util.PathWithFileSystem
        self._store = delta.storage.dv.HadoopFileSystemDVStore(hadoop)
        self._option = jvm.scala.Option
        self._hadoop = hadoop
        self._folder = jvm.org.apache.hadoop.fs.Path(table)

    def read(self, descriptor: Mapping[str, Any] | None) -> RowNumbers:
        """The rows that the `deletionVector` of an `add` action marks; none for `None`."""
        if descriptor is None:
            return NONE
        stored = self._stored(
            self._descriptor(
                descriptor["storageType"],
                descriptor["pathOrInlineDv"],
                self._option.apply(descriptor.get("offset")),
                descriptor["sizeInBytes"],
                descriptor["cardinality"],
                self._option.apply(None),
            ),
            self._option.apply(self._folder),
        )
        rows = stored.load(self._store).values()
        count = int(descriptor["cardinality"])
        buffer = self._jvm.java.nio.ByteBuffer.allocate(8 * count)
        buffer.asLongBuffer().put(rows)
        return np.frombuffer(buffer.array(), _IN_JAVA).astype(np.int64)

    def write(self, marked: Sequence[RowNumbers]) -> tuple[list[dict[str, Any]], list[str]]:
        """
        Write one file with a vector for each of `marked`, none of which is empty; not synced.

        Shape:
            result: the vectors as an `add` action has them, and the URIs of what was written.
        """
        if not marked:
            return [], []
        id_ = self._jvm.java.util.UUID.randomUUID()
        there = self._with_file_system.withConf(self._folder, self._hadoop)
        path = self._store.generateFileNameInTable(there, id_, "")
        with closing(self._store.createWriter(path)) as file:
            vectors = [self._written(file, id_, rows) for rows in marked]
        name = str(path.path().getName())
        return vectors, [uri.child(self._table, name)]

    def _written(self, file: Java, id_: Java, rows: RowNumbers) -> dict[str, Any]:
        data = self._serialized(rows)
        place = file.write(data)
        offset, size = int(place.offset()), len(data)
        vector = self._descriptor.onDiskWithRelativePath(
            id_, "", size, len(rows), self._option.apply(offset), self._option.apply(None)
        )
        return {
            "storageType": vector.storageType(),
            "pathOrInlineDv": vector.pathOrInlineDv(),
            "offset": offset,
            "sizeInBytes": size,
            "cardinality": len(rows),
        }

    def _serialized(self, rows: RowNumbers) -> bytes:
        numbers = self._gateway.new_array(self._jvm.long, len(rows))
        data = rows.astype(_IN_JAVA).tobytes()
        self._jvm.java.nio.ByteBuffer.wrap(data).asLongBuffer().get(numbers)
        bitmap = self._bitmap()
        bitmap.addAll(self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(numbers))
        bitmap.runOptimize()
        return bytes(bitmap.serializeAsByteArray(self._format))
