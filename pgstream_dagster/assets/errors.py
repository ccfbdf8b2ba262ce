"""What an error of the engine means to Dagster: retry, or fail and show the remedy."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import dagster as dg

from pgstream_dagster.errors import PgstreamError, Retry

RETRIES: Final = 3
RETRY_SECONDS: Final = 10
"""The operations wait out short outages by themselves; a run is retried for longer ones."""


@contextmanager
def as_dagster_errors() -> Generator[None]:
    """Raise errors of the engine as those that Dagster acts on; others pass unchanged."""
    try:
        yield
    except PgstreamError as error:
        raise as_dagster(error) from error


def as_dagster(error: PgstreamError) -> dg.RetryRequested | dg.Failure:
    """`RetryRequested` where waiting helps, else a `Failure` that no retry policy repeats."""
    if error.retry is Retry.LATER:
        return dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=RETRY_SECONDS)
    return dg.Failure(str(error), metadata=metadata(error), allow_retries=False)


def metadata(error: PgstreamError) -> dict[str, Any]:
    """The remedy first, then the error's name and its facts."""
    _, _, remedy = str(error).partition("; ")
    return {
        **({"remedy": remedy} if remedy else {}),
        "error": type(error).__name__,
        **{name: _value(fact) for name, fact in error.facts.items()},
    }


def _value(fact: object) -> Any:
    if isinstance(fact, str | int | float):
        return fact
    if isinstance(fact, Mapping | list | tuple):
        return dg.MetadataValue.json(fact)
    return str(fact)
