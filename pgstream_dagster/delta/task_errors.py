"""The cause of a failed Spark task: Spark reports it as text, among stack traces."""

from __future__ import annotations


def last_line(error: Exception, *prefixes: str) -> str:
    """The last line that begins with one of these error names, else the last line."""
    text = str(error).partition("Driver stacktrace:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(prefixes)]
    return (named or lines or [type(error).__name__])[-1]
