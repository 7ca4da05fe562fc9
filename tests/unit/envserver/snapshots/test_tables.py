"""Which containers are tables."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from envserver.snapshots.tables import LARGE, is_same, tables_of


def test_large_plain_containers_are_tables() -> None:
    """Nested ones count all their values; small ones, what is skipped and what is not plain are none."""
    rows = {row: [(row, column) for column in range(8)] for row in range(8)}
    owner = SimpleNamespace(
        rows=rows, small=list(range(LARGE)), env=list(range(999)), odd=[iter(())] * 99, name="x" * 99
    )
    found = tables_of(owner, {"env"})
    assert found == {"rows": rows}
    assert found["rows"] is not rows
    assert is_same(rows, found["rows"])
    rows[3][1] = (0, 0)
    assert not is_same(rows, found["rows"])
    assert not is_same(list(found["rows"]), found["rows"])


def test_what_equality_does_not_see_is_no_table() -> None:
    """Arrays, whose equality is an array, and generators, whose draws it does not show."""
    owner = SimpleNamespace(
        arrays={"a": [np.zeros(3)] * 99},
        lucks=[np.random.default_rng(each) for each in range(99)],
        deep=[0] * 99 + [(np.random.default_rng(0),)],
    )
    assert tables_of(owner, ()) == {}
