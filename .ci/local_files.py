"""
Compile delta/LocalFiles.java into local_files.jar (`make local-files`), which needs a JDK.

The jar is in the repository because who installs the package has no compiler. It has its source
too, by which a test sees that both belong together. The same compiler makes the same bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from zipfile import ZipFile, ZipInfo

import pyspark

FOLDER: Final = Path(__file__).parents[1] / "pgstream_dagster" / "delta"
SOURCE: Final = FOLDER / "LocalFiles.java"
JAR: Final = FOLDER / "local_files.jar"
OLDEST_JAVA: Final = "17"


def main() -> None:
    """Write the jar; without a compiler, end with what is missing."""
    compiler = shutil.which("javac")
    if compiler is None:
        sys.exit(f"needs javac of a JDK {OLDEST_JAVA} or later on PATH")
    hadoop = Path(pyspark.__file__).parent / "jars" / "*"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--release", OLDEST_JAVA, "-classpath", str(hadoop), "-d", folder, "-Xlint:all"]
        options += ["-Xlint:-path", "-Xlint:-classfile", "-g:none"]
        subprocess.run([compiler, *options, SOURCE], check=True)
        _write(sorted(Path(folder).rglob("*.class")), Path(folder))


def _write(classes: list[Path], folder: Path) -> None:
    with ZipFile(JAR, "w") as jar:
        for name, file in [
            *((str(path.relative_to(folder)), path) for path in classes),
            (SOURCE.name, SOURCE),
        ]:
            jar.writestr(ZipInfo(name), file.read_bytes())


if __name__ == "__main__":
    main()
