"""asyncrl.vector.exchange, its loop side alone: every order in which losses, replacements and commands can come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from queue import Empty
from typing import Any, cast

import numpy as np
import pytest

from asyncrl.client.fleet_lane import Arrival
from asyncrl.client.refusals import lane_lost
from asyncrl.vector.exchange import Answer, Exchange, LaneReset
from asyncrl.wire.step_rows import StepRows

ALL = LaneReset(None, None, None)


class Lane:
    """A lane that takes what it is given while it is up."""

    num_slots = 1

    def __init__(self, index: int) -> None:
        self.index = index
        self.up = True
        self.sent: list[str] = []

    def step(self, action: Any) -> bool:
        self.sent += ["step"] * self.up
        return self.up

    def reset(self, *request: Any) -> bool:
        self.sent += ["reset"] * self.up
        return self.up


class Fleet:
    """Two of them."""

    num_envs = 2

    def __init__(self) -> None:
        self.lanes = [Lane(0), Lane(1)]
        self.on_event: Any = None


class Desk:
    """The loop side of an exchange, called directly: what happens in which order is the test's to say."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.fleet = Fleet()
        self.exchange = Exchange(loop, cast(Any, self.fleet), 1.0, 1.0)

    def step(self) -> None:
        self.exchange._run_asked(lambda: self.exchange._step_all([[], []]), 1.0)

    def reset(self, *lanes: int) -> None:
        self.exchange._run_asked(lambda: self.exchange._reset_all(dict.fromkeys(lanes, ALL)), 1.0)

    def send(self, *lanes: int) -> None:
        self.exchange._begin_steps({lane: [] for lane in lanes})

    def take(self, num_slots: int) -> None:
        self.exchange._run_asked(lambda: self.exchange._want(num_slots), 1.0)

    def lost(self, lane: int) -> None:
        self.fleet.lanes[lane].up = False
        self._arrive(lane, None)

    def opened(self, lane: int) -> None:
        """A replacement is up; its first rows are on their way."""
        self.fleet.lanes[lane].up = True

    def rows(self, lane: int, mark: int = 0) -> None:
        """Rows of the lane; `mark` tells them from others."""
        self.fleet.lanes[lane].up = True
        self._arrive(lane, StepRows([], np.array([float(mark)]), np.zeros(1, np.uint8)))

    def told(self) -> list[tuple[int, int | None]] | None:
        """The batch that was handed over, as (lane, mark or None); None while there is none."""
        try:
            batch = self.exchange._box.get_nowait()
        except Empty:
            return None
        assert isinstance(batch, list)
        return [_told(answer) for answer in batch]

    def replaced(self) -> list[bool]:
        """Of the batch that was handed over, lane by lane."""
        batch = self.exchange._box.get_nowait()
        assert isinstance(batch, list)
        return [answer.replaced for answer in batch]

    def _arrive(self, lane: int, rows: StepRows | None) -> None:
        loss = lane_lost("test", "test") if rows is None else None
        nothing = np.zeros(1)
        self.exchange._arrived(Arrival(cast(Any, self.fleet.lanes[lane]), rows, loss, nothing, nothing, nothing))


def _told(answer: Answer) -> tuple[int, int | None]:
    return answer.lane, None if answer.rows is None else int(answer.rows.rewards[0])


@pytest.fixture
def desk() -> Iterator[Desk]:
    loop = asyncio.new_event_loop()
    yield Desk(loop)
    loop.close()


def test_a_step_waits_for_every_lane_that_was_stepped(desk: Desk) -> None:
    """One batch, when the last of them has answered; a loss is an answer."""
    desk.step()
    desk.rows(1, 5)
    assert desk.told() is None
    desk.lost(0)
    assert desk.told() == [(0, None), (1, 5)]


def test_a_loss_between_steps_is_told_once_and_before_its_replacement(desk: Desk) -> None:
    """Then come the first rows, and only then is the lane stepped."""
    desk.lost(0)
    desk.rows(0, 7)
    desk.step()
    desk.rows(1, 1)
    assert desk.told() == [(0, None), (1, 1)]
    desk.step()
    desk.rows(1, 2)
    assert desk.told() == [(0, 7), (1, 2)]
    assert desk.fleet.lanes[0].sent == []
    desk.step()
    assert desk.fleet.lanes[0].sent == ["step"]


def test_a_loss_that_is_seen_before_it_is_heard_is_told_once(desk: Desk) -> None:
    """The lane takes no step any more, and the news of it comes later: the same loss."""
    desk.fleet.lanes[0].up = False
    desk.step()
    desk.rows(1, 1)
    assert desk.told() == [(0, None), (1, 1)]
    desk.lost(0)
    desk.rows(0, 7)
    desk.step()
    desk.rows(1, 2)
    assert desk.told() == [(0, 7), (1, 2)]


def test_a_replacement_that_is_lost_unseen_never_was(desk: Desk) -> None:
    """Its first rows are dropped; what the caller sees is that the lane stays away."""
    desk.step()
    desk.rows(1, 1)
    desk.lost(0)
    assert desk.told() == [(0, None), (1, 1)]
    desk.rows(0, 7)
    desk.lost(0)
    desk.step()
    desk.rows(1, 2)
    assert desk.told() == [(0, None), (1, 2)]
    desk.rows(0, 8)
    desk.step()
    desk.rows(1, 3)
    assert desk.told() == [(0, 8), (1, 3)]


def test_with_every_lane_away_a_step_waits_for_news(desk: Desk) -> None:
    """No busy loop over rows that are no transitions."""
    desk.lost(0)
    desk.lost(1)
    desk.step()
    assert desk.told() == [(0, None), (1, None)]
    desk.step()
    assert desk.told() is None
    desk.rows(1, 9)
    assert desk.told() == [(0, None), (1, None)]
    desk.step()
    assert desk.told() == [(0, None), (1, 9)]


def test_a_reset_waits_for_the_replacement_and_resets_it(desk: Desk) -> None:
    """Neither its own first rows nor another loss on the way are the answer."""
    desk.lost(0)
    desk.reset(0, 1)
    desk.rows(1, 1)
    assert desk.told() is None
    desk.rows(0, 5)
    assert desk.fleet.lanes[0].sent == ["reset"]
    desk.lost(0)
    assert desk.told() is None
    desk.rows(0, 6)
    assert desk.fleet.lanes[0].sent == ["reset", "reset"]
    desk.rows(0, 7)
    assert desk.told() == [(0, 7), (1, 1)]


def test_a_reset_tells_which_lanes_were_replaced(desk: Desk) -> None:
    """Whenever the loss came: before it, with or without rows of the replacement, during it; once, and of that lane."""
    desk.lost(0)
    desk.rows(0, 5)
    desk.reset(0, 1)
    desk.rows(1, 1)
    desk.rows(0, 6)
    assert desk.replaced() == [True, False]
    desk.lost(1)
    desk.reset(0, 1)
    desk.rows(0, 1)
    desk.rows(1, 2)
    desk.rows(1, 3)
    assert desk.replaced() == [False, True]
    desk.reset(0, 1)
    desk.rows(1, 1)
    desk.lost(0)
    desk.rows(0, 5)
    desk.rows(0, 6)
    assert desk.replaced() == [True, False]
    desk.reset(0, 1)
    desk.rows(0, 1)
    desk.rows(1, 1)
    assert desk.replaced() == [False, False]


def test_a_reset_forgets_what_nobody_has_seen(desk: Desk) -> None:
    """First rows of a replacement that lie there are replaced by those of the reset."""
    desk.lost(0)
    desk.rows(0, 5)
    desk.reset(0)
    assert desk.fleet.lanes[0].sent == ["reset"]
    desk.rows(0, 6)
    assert desk.told() == [(0, 6)]


def test_take_does_not_wait_for_lanes_that_are_away(desk: Desk) -> None:
    """Two slots are wanted, one lane is away: the other one's rows are what can come. The lost one follows."""
    desk.send(0, 1)
    desk.take(2)
    desk.lost(0)
    desk.rows(1, 1)
    assert desk.told() == [(0, None), (1, 1)]
    desk.send(0, 1)
    desk.take(2)
    desk.rows(1, 2)
    assert desk.told() == [(1, 2)]
    desk.lost(0)  # a replacement that did not live to its first rows
    desk.take(2)
    assert desk.told() is None
    desk.rows(0, 5)
    assert desk.told() == [(0, 5)]
    assert desk.fleet.lanes[0].sent == ["step"]


def test_rows_after_the_deadline_are_news(desk: Desk) -> None:
    """A lane that was given up has no rows for this step; they come with the next."""
    desk.step()
    desk.rows(1, 1)
    desk.exchange._give_up()
    assert desk.told() == [(0, None), (1, 1)]
    desk.rows(0, 2)
    desk.step()
    desk.rows(1, 3)
    assert desk.told() == [(0, 2), (1, 3)]
    assert desk.fleet.lanes[0].sent == ["step"]
    desk.step()
    desk.rows(1, 9)
    desk.exchange._give_up()
    assert desk.told() == [(0, None), (1, 9)]
    desk.step()
    desk.rows(1, 4)
    assert desk.told() == [(0, None), (1, 4)]
    assert desk.fleet.lanes[0].sent == ["step", "step"]  # not a third one behind the one that is not answered


def test_a_replacement_that_is_up_is_not_stepped_before_its_rows_are_here(desk: Desk) -> None:
    """The lane would take the action; it was chosen for another environment."""
    desk.lost(0)
    desk.step()
    desk.rows(1, 1)
    assert desk.told() == [(0, None), (1, 1)]
    desk.opened(0)
    desk.step()
    desk.rows(1, 2)
    assert desk.told() == [(0, None), (1, 2)]
    assert desk.fleet.lanes[0].sent == []


def test_a_replacement_that_is_up_is_not_reset_before_its_rows_are_here(desk: Desk) -> None:
    """Its first rows would be taken for the answer."""
    desk.lost(0)
    desk.opened(0)
    desk.reset(0)
    assert desk.fleet.lanes[0].sent == []
    desk.rows(0, 5)
    assert desk.told() is None
    desk.rows(0, 6)
    assert desk.told() == [(0, 6)]


def test_a_reset_leaves_nothing_behind(desk: Desk) -> None:
    """After it news of before are gone, and a later replacement is not reset on its account."""
    desk.lost(0)
    desk.rows(0, 5)
    desk.reset(0, 1)
    desk.rows(0, 6)
    desk.rows(1, 1)
    assert desk.told() == [(0, 6), (1, 1)]
    desk.step()
    assert desk.fleet.lanes[0].sent == ["reset", "step"]
    desk.lost(0)
    desk.rows(1, 2)
    assert desk.told() == [(0, None), (1, 2)]
    desk.rows(0, 7)
    assert desk.fleet.lanes[0].sent == ["reset", "step"]
