"""Waves: many messages at once, and never two of a group."""

from __future__ import annotations

from collections.abc import Mapping

from pgstream_dagster.readers.change import Change
from pgstream_dagster.sinks.base import NotNow, Refused, Verdict
from pgstream_dagster.sinks.waves import Waves
from tests.support.harness.outbox_events import event

BAD = Refused("bad")


class Target:
    """Takes what does not begin with `bad`."""

    def __init__(self) -> None:
        self.waves = list[list[str]]()

    def send(self, wave: Mapping[int, str]) -> Mapping[int, Verdict]:
        self.waves.append(list(wave.values()))
        return {index: BAD for index, item in wave.items() if item.startswith("bad")}


def delivered(
    items: Mapping[str, int | None], *, most: int = 100, most_bytes: int = 100
) -> tuple[Target, Mapping[int, Verdict]]:
    """Items with their groups; one called `no...` is refused before."""
    changes: list[Change] = [
        event(number, **({} if group is None else {"group_id": group}))
        for number, group in enumerate(items.values())
    ]
    target, waves = Target(), Waves(changes, most=most, most_bytes=most_bytes)
    made = [BAD if item.startswith("no") else item for item in items]
    return target, waves.deliver(made, len, target.send)


def test_neighbours_of_different_groups_are_one_wave() -> None:
    target, verdicts = delivered({"a": 1, "b": 2, "c": None, "d": None, "e": 1, "f": 3})
    assert target.waves == [["a", "b", "c", "d"], ["e", "f"]] and verdicts == {}


def test_a_wave_has_at_most_so_many_messages_and_bytes() -> None:
    many = dict.fromkeys("abcde")
    assert delivered(many, most=2)[0].waves == [["a", "b"], ["c", "d"], ["e"]]
    assert delivered({"aaa": None, "bb": None, "c" * 9: None, "d": None}, most_bytes=5)[
        0
    ].waves == [["aaa", "bb"], ["c" * 9], ["d"]]


def test_what_follows_a_refused_message_of_its_group_is_not_sent() -> None:
    items = {"bad": 1, "b": 2, "later": 1, "no": 3, "last": 3, "c": 2}
    target, verdicts = delivered(items)
    assert target.waves == [["bad", "b"], ["c"]]
    assert verdicts[0] == verdicts[3] == BAD and list(verdicts) == [0, 2, 3, 4]
    assert all(isinstance(verdicts[i], NotNow) and verdicts[i].is_behind for i in (2, 4))


def test_a_thousand_refusals_in_a_row_end_the_batch() -> None:
    many = {f"bad{n}": None for n in range(1_500)}
    target, verdicts = delivered(many, most=500, most_bytes=1 << 20)
    assert len(target.waves) == 2 and sum(v == BAD for v in verdicts.values()) == 1_000
    assert len(verdicts) == 1_500
