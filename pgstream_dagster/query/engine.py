"""
DuckDB with its reader of Delta tables, closed to everything but one lake.

The reader is built on Delta's own kernel: it applies column mapping and deletion vectors, and reads
only the columns and files that a query needs. It comes with a package, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from pgstream_dagster.delta import uri
from pgstream_dagster.errors import ExtraMissing, SqlNeedsFolder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXTRA: Final = "sql"

DATABASE: Final = "memory"
"""What DuckDB calls a database without a file."""

CLOSED: Final = (
    "set enable_external_access = false",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set python_enable_replacements = false",  # a name is never a variable of this process
    "set timezone = 'UTC'",
    "set errors_as_json = true",
)
"""After the lake's folder was allowed; from then on nothing else can be."""

LOCKED: Final = "set lock_configuration = true"


def folder_of(lake: str) -> Path:
    """
    The folder of a lake, given as a URI.

    Raises:
        SqlNeedsFolder: it is on an object store.
    """
    folder = uri.local(lake)
    if folder is None:
        raise SqlNeedsFolder(lake)
    return folder


@contextmanager
def engine(folder: Path) -> Generator[DuckDBPyConnection]:
    """
    A connection that reads Delta tables below a folder and no other file; closed with the block.

    What does not fit in memory goes to a temporary folder, which is removed.

    Raises:
        ExtraMissing: the packages of the extra `sql` are not installed.
    """
    extension = _extension()
    import duckdb

    with TemporaryDirectory(prefix="pgstream-sql-") as spill, duckdb.connect() as connection:
        connection.execute(f"load {literal(str(extension))}")
        connection.execute(f"set temp_directory = {literal(spill)}")
        connection.execute(f"set allowed_directories = [{literal(str(folder))}]")
        for statement in CLOSED:
            connection.execute(statement)
        yield connection


def scan(folder: Path) -> str:
    """
    The expression by which a query reads the Delta table in a folder.

    It names the folder by its URI: of a path, the reader takes `%20` for a blank.
    """
    return f"delta_scan({literal(folder.as_uri())})"


def literal(text: str) -> str:
    """A text as part of a statement."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """A name as part of a statement."""
    return '"' + name.replace('"', '""') + '"'


def _extension() -> Path:
    try:
        import duckdb
        import duckdb_extension_delta
    except ImportError as error:
        raise ExtraMissing(error.name or "duckdb", EXTRA) from error
    package = Path(str(duckdb_extension_delta.__file__)).parent
    path = package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    if not path.is_file():  # a package of another version than DuckDB
        raise ExtraMissing(f"duckdb-extension-delta=={duckdb.__version__}", EXTRA)
    return path
