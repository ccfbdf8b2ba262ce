"""What ended a task of Spark, which hands an error over as text, its cause among stack traces."""

from __future__ import annotations


def last_line(error: Exception, *prefixes: str) -> str:
    """The last line that begins with one of these names of errors, else the last one there is."""
    text = str(error).partition("Driver stacktrace:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(prefixes)]
    return (named or lines or [type(error).__name__])[-1]
