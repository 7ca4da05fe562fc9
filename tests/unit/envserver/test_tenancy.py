"""Capacity, fencing and restart budgets, against a model and a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ServerRefused
from envserver.tenancy import MAX_REMEMBERED, Budget, Quarantine, Tenancy


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.booleans()), max_size=60))
def test_capacity_is_conserved(moves: list[tuple[int, int, bool]]) -> None:
    """Under any order of taking and giving back, `used` is what a plain list of holdings says, and never too much."""
    tenancy, held = Tenancy(10, 3), list[tuple[str, int]]()
    for run, slots, take in moves:
        name = f"run{run}"
        if take:
            fits = sum(n for _, n in held) + slots <= 10 and sum(r == name for r, _ in held) < 3
            if fits:
                tenancy.take(name, "", slots)
                held.append((name, slots))
            else:
                with pytest.raises(ServerRefused, match=r"BUSY|CAPACITY"):
                    tenancy.take(name, "", slots)
        elif held:
            tenancy.give_back(held[0][0], "", held.pop(0)[1])
        assert tenancy.used == sum(n for _, n in held) <= 10
    for name, slots in held:
        tenancy.give_back(name, "", slots)
    tenancy.take("anyone", "", 10)


def test_busy_names_the_holder_and_capacity_the_limit() -> None:
    """More than there will ever be is CAPACITY; what others hold is BUSY, retryable, with their names."""
    tenancy = Tenancy(8, 64)
    with pytest.raises(ServerRefused, match=r"8 in all.*--num-envs") as refused:
        tenancy.take("a", "", 9)
    assert (refused.value.code, refused.value.retryable) == ("CAPACITY", False)
    tenancy.take("a", "", 6)
    with pytest.raises(ServerRefused, match=r"2 of 8 are free \(run 'a': 6\)") as refused:
        tenancy.take("b", "", 3)
    assert (refused.value.code, refused.value.retryable) == ("BUSY", True)


def test_older_epochs_are_fenced() -> None:
    """Equal epochs coexist, a newer one takes over and says so once, an older one gets FENCED; runs are independent."""
    tenancy = Tenancy(1, 1)
    assert [tenancy.fence("a", 1), tenancy.fence("a", 1), tenancy.fence("a", 2), tenancy.fence("a", 2)] == [
        False,
        False,
        True,
        False,
    ]
    with pytest.raises(ServerRefused) as refused:
        tenancy.fence("a", 1)
    assert refused.value.code == "FENCED"
    assert not tenancy.fence("b", 0)


def test_remembered_epochs_are_bounded() -> None:
    """A peer that invents run ids cannot grow the table without end; the oldest go first."""
    tenancy = Tenancy(1, 1)
    for number in range(MAX_REMEMBERED + 1):
        tenancy.fence(f"run{number}", 5)
    assert not tenancy.fence("run0", 1)
    with pytest.raises(ServerRefused):
        tenancy.fence("run1024", 4)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _ban_of(quarantine: Quarantine) -> float:
    try:
        quarantine.check("place")
    except ServerRefused as error:
        return error.retry_after_s if error.code == "QUARANTINED" else -1.0
    return 0.0


def test_quarantine_readmits() -> None:
    """Five crashes within a minute ban the place; each ban is twice the last, up to the longest; others are free."""
    clock, bans = Clock(), list[float]()
    quarantine = Quarantine(Budget(first_ban_s=5.0, longest_ban_s=300.0), clock)
    for _ in range(8):
        for _ in range(5):
            assert _ban_of(quarantine) == 0.0
            quarantine.crashed("place")
        bans.append(_ban_of(quarantine))
        quarantine.check("elsewhere")
        clock.now += bans[-1]
    assert bans == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_a_place_that_crashes_for_days_stays_bounded() -> None:
    """The thousandth ban is as long as the longest, and there is another one after it."""
    clock = Clock()
    quarantine = Quarantine(Budget(longest_ban_s=300.0), clock)
    for _ in range(1100):
        for _ in range(5):
            quarantine.crashed("place")
        assert 0.0 < _ban_of(quarantine) <= 300.0
        clock.now += 300.0


def test_slow_crashes_are_no_reason() -> None:
    """A crash every 20 s stays within the budget for ever."""
    clock = Clock()
    quarantine = Quarantine(Budget(), clock)
    for _ in range(50):
        quarantine.crashed("place")
        assert _ban_of(quarantine) == 0.0
        clock.now += 20.0


def test_good_behaviour_is_remembered() -> None:
    """After a long quiet time the next ban is a short one again."""
    clock = Clock()
    quarantine = Quarantine(Budget(), clock)
    for _ in range(15):
        quarantine.crashed("place")
    assert _ban_of(quarantine) == 20.0
    clock.now += 1000.0
    for _ in range(5):
        quarantine.crashed("place")
    assert _ban_of(quarantine) == 5.0
