"""Two pipelines merged under prefixes, a third as a component of `defs`, and our own asset."""

from pathlib import Path

import dagster as dg

from host_project.rows import order_count
from host_project.vault import VaultSource
from pgstream_dagster.build import build_definitions

FOLDER = Path(__file__).parent


@dg.definitions
def defs() -> dg.Definitions:
    """Everything of the code location."""
    return dg.Definitions.merge(
        *(
            build_definitions(FOLDER / f"{name}.yaml", source=VaultSource(entry=name), prefix=name)
            for name in ("shop", "crm")
        ),
        dg.load_from_defs_folder(path_within_project=FOLDER),
        dg.Definitions([order_count], resources={"source": "ours"}),
    )
