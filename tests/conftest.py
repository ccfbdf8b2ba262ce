"""What every test shares: the fixtures of the services, and that no clock judges an example."""

from __future__ import annotations

import importlib.util

from hypothesis import HealthCheck, settings

# How long one example takes says how busy the machine is.
settings.register_profile("pgstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pgstream")

pytest_plugins = [
    name
    for name in (
        "tests.support.plugins.cluster",
        "tests.support.plugins.kafka",
        "tests.support.plugins.lake",
        "tests.support.plugins.metastore",
        "tests.support.plugins.queues",
        "tests.support.plugins.search",
    )
    if importlib.util.find_spec(name) is not None
]
