"""The embedded broker, as every other test of Kafka relies on it."""

from __future__ import annotations

from unittest import mock

import pytest

from pgstream_dagster.embedded import kafka as embedded


@pytest.mark.long
def test_broker_starts_whatever_the_first_character_of_its_cluster_id_is() -> None:
    with mock.patch.object(embedded.secrets, "token_bytes", return_value=b"\xf8" * 16):
        broker = embedded.Kafka()
    assert broker.cluster.startswith("-")  # as one in 64 does
    with broker:
        assert broker.running
