"""What is worst about a slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgstream_dagster.lsn import Lsn
from pgstream_dagster.source.slot import SlotState, WalStatus
from pgstream_dagster.upkeep.health import finding

GIB = 1 << 30

WELL = SlotState(
    slot="shop",
    plugin="pgoutput",
    kind="logical",
    database="shop",
    is_in_this_database=True,
    is_temporary=False,
    active_pid=42,
    inactive_seconds=None,
    restart_lsn=Lsn(10 * GIB - 20),
    confirmed_lsn=Lsn(10 * GIB - 10),
    wal_status=WalStatus.RESERVED,
    safe_wal_bytes=2 * GIB,
    invalidation_reason=None,
    is_failover=False,
    is_standby_copy=False,
    wal_lsn=Lsn(10 * GIB),
)


def test_slot_that_is_read_and_keeps_up_is_well() -> None:
    assert finding(WELL) is None
    assert finding(replace(WELL, safe_wal_bytes=None)) is None


@pytest.mark.parametrize(
    ("changes", "text", "is_fatal"),
    [
        ({"wal_status": WalStatus.LOST}, "the slot is lost", True),
        ({"invalidation_reason": "wal_removed"}, "lost (wal_removed)", True),
        ({"wal_status": WalStatus.UNRESERVED}, "at the next checkpoint", True),
        (
            {"active_pid": None, "inactive_seconds": 312.4},
            "no process reads the slot, for 312 s",
            False,
        ),
        ({"active_pid": None}, "no process reads the slot; start the job 'stream'", False),
        ({"safe_wal_bytes": -1}, "0 bytes of WAL until the slot is lost", False),
        ({"confirmed_lsn": Lsn(8 * GIB)}, "2,147,483,648 bytes of WAL are not in the log", False),
    ],
)
def test_worst_is_named_with_what_helps(changes: dict, text: str, is_fatal: bool) -> None:
    problem = finding(replace(WELL, **changes))
    assert problem is not None
    assert text in problem.message
    assert problem.is_fatal is is_fatal


def test_no_slot_is_fatal() -> None:
    problem = finding(None)
    assert problem is not None
    assert problem.is_fatal
    assert "pgstream setup" in problem.message
