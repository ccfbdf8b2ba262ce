"""How to reach a search cluster. Imports no client: the environment is read in every command."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to reach a cluster; secrets are not shown."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    ca_file: str = ""
