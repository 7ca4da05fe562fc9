"""How often a wave looks whether it has to stop, by a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from envserver.snapshots.pacing import LOOK_S, MOST_STEPS, Pace, Stopped


class Steps:
    """Takes steps of `step_s` as the loops of a wave do; when it looked, in steps."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now = 0.0
        self.taken = 0
        self.looks: list[int] = []
        self.code = ""
        self.pace = Pace(self.interrupted, lambda: self.now)

    def interrupted(self) -> str:
        self.looks.append(self.taken)
        return self.code

    def take(self, count: int) -> list[int]:
        self.taken = 0
        self.pace.enter()
        self.looks.clear()
        left = self.pace.steps
        for _ in range(count):
            if not left:
                left = self.pace.look()
            left -= 1
            self.now += self.step_s
            self.taken += 1
        return self.looks


def test_slow_steps_are_looked_at_one_by_one() -> None:
    """From the first on, and in every loop of the wave."""
    steps = Steps(0.2)
    for _ in range(2):
        assert steps.take(6) == [1, 2, 3, 4, 5]


def test_brief_steps_are_looked_at_together() -> None:
    """More and more of them, up to a bound; the next loop goes on with that, and a single step costs no look."""
    steps = Steps(1e-6)
    assert steps.take(80) == [1, 3, 7, 15, 31, 47, 63, 79]
    assert steps.take(1) == []
    assert steps.take(40) == [MOST_STEPS, 2 * MOST_STEPS]


def test_a_simulator_that_slows_down_is_noticed() -> None:
    """After one lot of slow steps each is looked at."""
    steps = Steps(1e-6)
    steps.take(200)
    steps.step_s = 1.0
    assert steps.take(50)[:4] == [16, 17, 18, 19]


def test_looks_are_about_so_far_apart() -> None:
    """Steps of 10 ms: between half of LOOK_S and twice as much lies between two looks."""
    steps = Steps(0.01)
    looks = steps.take(100)
    apart = {(b - a) * 0.01 for a, b in itertools.pairwise(looks[3:])}
    assert min(apart) >= LOOK_S / 2
    assert max(apart) <= 2 * LOOK_S


def test_the_code_of_the_interruption_is_kept() -> None:
    """It becomes the status of the entry."""
    steps = Steps(1.0)
    for taken in (0, 1):  # before the entry begins, and in it
        looks = iter([""] * taken)
        pace = Pace(lambda looks=looks: next(looks, "DEADLINE"))  # type: ignore[misc]
        steps.pace = pace
        with pytest.raises(Stopped) as stopped:
            steps.take(2)
        assert stopped.value.code == "DEADLINE"
        assert steps.taken == taken
