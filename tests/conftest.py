"""What every test shares: the fixtures of the services."""

from __future__ import annotations

import importlib.util

pytest_plugins = [
    name
    for name in ("tests.plugins.cluster", "tests.plugins.lake", "tests.plugins.search")
    if importlib.util.find_spec(name) is not None
]
