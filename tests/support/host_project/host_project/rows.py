"""An asset that reads the rows of a pipeline through the public API."""

import dagster as dg

from pgstream_dagster import read_table


@dg.asset(
    deps=[dg.AssetKey(["shop", "change_log"])],
    required_resource_keys={"source", "shop_pgstream_pipeline"},
)
def order_count(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """How many orders there are."""
    pipeline = context.resources.shop_pgstream_pipeline.open()
    rows = read_table(pipeline, "public.orders").rows.count()
    return dg.MaterializeResult(metadata={"dagster/row_count": rows})
