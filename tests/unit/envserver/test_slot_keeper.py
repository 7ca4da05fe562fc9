"""Backoff and quarantine on a clock that only the test moves."""

from __future__ import annotations

from envserver.slot_keeper import MAX_QUARANTINE_S, MIN_LIFE, SlotKeeper


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waits(faults: int, life: int = 0) -> tuple[list[float], SlotKeeper, Clock]:
    """The wait after each of so many faults, each waited for."""
    clock = Clock()
    keeper = SlotKeeper(clock)
    found = []
    for _ in range(faults):
        keeper.fault(life)
        found.append(round(keeper.retry_in_s(), 6))
        clock.now += keeper.retry_in_s()
    return found, keeper, clock


def test_an_accident_is_repaired_at_once() -> None:
    """A slot that lived long enough is rebuilt without a wait, however often that happens."""
    found, keeper, _ = waits(50, life=MIN_LIFE)
    assert found == [0.0] * 50
    assert not keeper.quarantined


def test_waits_double_and_five_faults_in_a_minute_are_a_quarantine() -> None:
    """0, 0.1, 0.2, 0.4 s, then 30, 60, 120 s and so on to an hour."""
    found, keeper, _ = waits(7)
    assert found == [0.0, 0.1, 0.2, 0.4, 30.0, 60.0, 120.0]
    assert keeper.quarantined
    assert waits(20)[0][-1] == MAX_QUARANTINE_S


def test_slow_faults_are_no_quarantine() -> None:
    """The fifth fault counts only within a minute of the first; the backoff goes on to 30 s."""
    clock = Clock()
    keeper = SlotKeeper(clock)
    seen: list[tuple[bool, float]] = []
    for _ in range(12):
        keeper.fault(1)
        seen.append((keeper.quarantined, keeper.retry_in_s()))
        clock.now += 40.0
    assert not any(quarantined for quarantined, _ in seen)
    assert seen[-1][1] == 30.0


def test_only_a_long_enough_life_ends_a_streak() -> None:
    """Being created anew lifts the quarantine, not the memory of it."""
    _, keeper, clock = waits(5)
    seen: list[tuple[bool, float]] = []

    def look() -> None:
        seen.append((keeper.quarantined, keeper.retry_in_s()))

    keeper.restored()
    look()
    keeper.fault(MIN_LIFE - 1)
    look()
    clock.now += 60.0
    keeper.restored()
    keeper.fault(MIN_LIFE)
    look()
    keeper.fault(0)
    look()
    assert seen == [(False, 0.0), (True, 60.0), (False, 0.0), (False, 0.0)]


def test_a_slot_that_always_fails_is_not_tried_in_a_busy_loop() -> None:
    """Polled a thousand times a second, it is tried less than 20 times in its first minute."""
    clock = Clock()
    keeper = SlotKeeper(clock)
    tries = 0
    while clock.now < 60.0:
        if keeper.retry_in_s() <= 0.0:
            tries += 1
            keeper.fault(0)
        clock.now += 0.001
    assert 4 < tries < 20
