"""Which changes may overtake each other: never those of one row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.sinks.webhook.order import Held, lanes, queues
from tests.support.webhooks import change, insert


def test_with_one_worker_all_changes_are_in_one_queue():
    assert queues([insert(n) for n in range(5)], 1) == [[0, 1, 2, 3, 4]]


def test_without_changes_there_is_no_queue():
    assert queues([], 1) == []
    assert queues([], 4) == []


def test_changes_of_one_key_share_a_queue_and_keys_spread():
    spread = queues([insert(n, str(n % 3)) for n in range(9)], 3)
    assert sorted(spread) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_a_moved_row_joins_both_of_its_keys():
    moved = insert(2, "b", op="update", old_key=("a",))
    changes = [insert(0, "a"), insert(1, "b"), moved, insert(3, "a"), insert(4, "b")]
    assert queues(changes, 8) == [[0, 1, 2, 3, 4]]


def test_a_truncate_joins_all_changes_of_its_table_and_no_other_table():
    other = insert(3, relation_id=8)
    changes = [insert(0), insert(1), change(2, op="truncate"), other]
    assert sorted(queues(changes, 8)) == [[0, 1, 2], [3]]


rows = st.sampled_from("abcd")
histories = st.lists(
    st.one_of(
        st.builds(lambda r, k: insert(0, k, relation_id=r), st.integers(1, 2), rows),
        st.builds(
            lambda r, k, o: insert(0, k, relation_id=r, op="update", old_key=(o,)),
            st.integers(1, 2),
            rows,
            rows,
        ),
        st.builds(lambda r: change(0, op="truncate", relation_id=r), st.integers(1, 2)),
    ),
    max_size=30,
)


@given(histories, st.integers(1, 6))
def test_no_queue_overtakes_a_change_that_shares_a_row(changes, count):
    spread = queues(changes, count)
    assert sorted(index for queue in spread for index in queue) == list(range(len(changes)))
    assert all(queue == sorted(queue) for queue in spread)
    home = {index: number for number, queue in enumerate(spread) for index in queue}
    for later, second in enumerate(changes):
        for earlier, first in enumerate(changes[:later]):
            held = Held()
            held.add(first)
            if second in held:
                assert home[earlier] == home[later]


@given(histories)
def test_what_is_held_is_what_shares_a_row(changes):
    held = Held()
    for undelivered in changes[:5]:
        held.add(undelivered)
    for later in changes[5:]:
        shared = any(
            row == other or (row[0] == other[0] and None in (row[1], other[1]))
            for undelivered in changes[:5]
            for other in lanes(undelivered)
            for row in lanes(later)
        )
        assert (later in held) == shared
