"""The store: quota, ids, release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envserver.snapshots.store import Position, QuotaExceeded, Snapshot, SnapshotStore

AT = Position(None, None, None, 0.0, 0)
operations = st.lists(
    st.tuples(st.sampled_from(["put", "release", "drop", "all"]), st.integers(0, 9), st.integers(1, 60)), max_size=60
)


def snapshot(nbytes: int, row: int = 0) -> Snapshot:
    return Snapshot(object(), nbytes, AT, (row, 0))


@given(operations)
def test_the_quota_is_never_exceeded(steps: list[tuple[str, int, int]]) -> None:
    """Under any operations the store equals a dict, and its sum is what is counted."""
    store, twin = SnapshotStore(100, 4), dict[int, Snapshot]()
    for what, key, size in steps:
        if what == "put":
            fits = key in twin or (sum(each.nbytes for each in twin.values()) + size <= 100 and len(twin) < 4)
            if fits:
                twin.setdefault(key, snapshot(size, key % 2))
                assert store.put(key, twin[key]) is twin[key]
            else:
                with pytest.raises(QuotaExceeded):
                    store.put(key, snapshot(size))
        elif what == "release":
            assert store.release([key, key]) == (twin.pop(key, None) is not None)
        elif what == "drop":
            store.drop_origin(key % 2, 0)
            twin = {each: held for each, held in twin.items() if held.origin != (key % 2, 0)}
        else:
            assert store.release_all() == len(twin)
            twin.clear()
        assert store.held_bytes == sum(each.nbytes for each in twin.values()) <= 100
        assert len(store) == len(twin) <= 4
        assert all(store.get(each) is twin.get(each) for each in range(10))


def test_a_repeated_id_finds_its_own() -> None:
    """The second request with an id gets what the first one made, also when the store is full."""
    store = SnapshotStore(100, 1)
    first = store.put(7, snapshot(100))
    assert store.put(7, snapshot(100)) is first
    assert 7 in store


def test_the_refusal_says_what_to_do() -> None:
    """The text names the quota and what is taken of it."""
    store = SnapshotStore(100, 1)
    store.put(1, snapshot(60))
    with pytest.raises(QuotaExceeded, match=r"60 of 100 bytes.*snapshot_bytes"):
        store.check_room(50)
    with pytest.raises(QuotaExceeded, match="1 snapshots"):
        store.check_room(10)


def test_release_gives_every_byte_back() -> None:
    """Nothing is counted once everything is released."""
    store = SnapshotStore(1000, 10)
    for key in range(5):
        store.put(key, snapshot(10 + key))
    assert store.release([0, 1, 77]) == 2
    assert store.held_bytes == 12 + 13 + 14
    assert store.release_all() == 3
    assert (store.held_bytes, len(store)) == (0, 0)
