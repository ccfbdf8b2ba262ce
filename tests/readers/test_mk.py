import sys
from pathlib import Path
from tests.readers import source
from tests.support.harness.case import execute
from tests.support.harness.typed_tables import caught_up, typed_pipeline
from tests.support.harness import typed_tables
from pgstream_dagster.upkeep.setup import setup
def test_make(dsn, spark):
    import shutil
    folder = Path("/tmp/w/readers-lake"); shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    execute(dsn, *[s for s in source.TYPES.split(";") ], source.FIRST_ROWS, *source.ORDERS)
    pipeline = typed_pipeline(dsn, folder, types={'public."Many Types"': {"columns": {"loose": {"json": "variant"}}}})
    setup(pipeline)
    print(caught_up(pipeline))
    execute(dsn, *source.CHANGES)
    print(caught_up(pipeline))
    execute(dsn, *source.COLUMN_CHANGES)
    print(caught_up(pipeline))
    for n in ("Many Types", "orders"):
        for row in list(typed_tables.source_rows(dsn, n))[:3]: print(row)
