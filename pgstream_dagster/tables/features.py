"""
The features of Delta tables that typed tables use, and that a reader may lack. Pure.

Source:
    https://github.com/delta-io/delta/blob/master/PROTOCOL.md (Column Mapping, Deletion Vectors)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgstream_dagster.config.tables import TablesConfig

_MAPPING: Final = "delta.columnMapping.mode"
_VECTORS: Final = "delta.enableDeletionVectors"


@dataclass(frozen=True, slots=True)
class Features:
    """
    The features of a table that can be switched off.

    `column_mapping`: columns are renamed and dropped in place, and may have any name.
    `deletion_vectors`: a merge marks rows instead of writing their files.
    """

    column_mapping: bool = True
    deletion_vectors: bool = True

    @classmethod
    def configured(cls, config: TablesConfig) -> Features:
        """Those that the pipeline file asks for."""
        return cls(config.column_mapping, config.deletion_vectors)

    @classmethod
    def present(cls, properties: Mapping[str, str]) -> Features:
        """Those of a table with these properties."""
        return cls(properties.get(_MAPPING) == "name", properties.get(_VECTORS) == "true")

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a table with them."""
        return {
            _MAPPING: "name" if self.column_mapping else "none",
            _VECTORS: "true" if self.deletion_vectors else "false",
        }

    def without(self, others: Features) -> list[str]:
        """The names of those that others lack, as the protocol writes them."""
        names = {
            "columnMapping": self.column_mapping and not others.column_mapping,
            "deletionVectors": self.deletion_vectors and not others.deletion_vectors,
        }
        return [name for name, is_only_here in names.items() if is_only_here]


ALL: Final = Features()
NONE: Final = Features(column_mapping=False, deletion_vectors=False)
