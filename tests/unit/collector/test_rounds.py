"""The rule of rounds under random lanes: who may begin, what goes to the learner together."""

from __future__ import annotations

import random

import pytest

from asyncrl.collector.rounds import Rounds
from asyncrl.records import Unroll
from tests.unit.buffers.unrolls import an_unroll


class Play:
    """Lanes that begin, finish, are lost and come back at random, and a learner that trains at random."""

    def __init__(self, seed: int, num_lanes: int, lag: int | None, lossy: bool) -> None:
        self.rng = random.Random(seed)
        self.rounds = Rounds(num_lanes, lag)
        self.lag = lag
        self.trained = 0
        self.handed: list[list[Unroll]] = []
        self.inside: dict[int, int] = {}  # lane -> round
        self.out: set[int] = set()
        self.waiting = list(range(num_lanes))
        self.begun = self.finished = 0
        self._lossy = lossy

    def turn(self) -> None:
        kind = self.rng.random()
        if kind < 0.4:
            for lane in self.rng.sample(self.waiting, len(self.waiting)):
                if self.rounds.may_begin(lane):
                    self.waiting.remove(lane)
                    self.begin(lane)
        elif kind < 0.7 and self.inside:
            lane = self.rng.choice(sorted(self.inside))
            self.finish(lane, an_unroll(lane))
            self.waiting.append(lane)
        elif kind < 0.85:
            if self.trained < len(self.handed):
                self.trained += 1
                self.rounds.num_trained = self.trained
        elif self._lossy:
            self.lose_or_return()

    def begin(self, lane: int) -> None:
        number = self.rounds.begin(lane)
        self.begun += 1
        self.inside[lane] = number

    def finish(self, lane: int, unroll: Unroll | None) -> None:
        del self.inside[lane]
        self.finished += unroll is not None
        self.handed += self.rounds.finish(lane, unroll)

    def lose_or_return(self) -> None:
        if self.out and self.rng.random() < 0.6:
            lane = self.rng.choice(sorted(self.out))
            self.out.remove(lane)
            self.rounds.join(lane)
            self.waiting.append(lane)
            return
        present = [*self.inside, *self.waiting]
        if not present:
            return
        lane = self.rng.choice(sorted(present))
        if lane in self.inside:
            self.finish(lane, an_unroll(lane) if self.rng.random() < 0.5 else None)
        else:
            self.waiting.remove(lane)
        self.out.add(lane)
        self.handed += self.rounds.leave(lane)


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_lane_is_further_ahead_than_its_lag(lag: int, seed: int) -> None:
    """Whenever a lane begins, at most `lag` rounds before its own are not trained on; some lane gets as far."""
    play, ahead = Play(seed, 3, lag, lossy=False), set()
    for _ in range(600):
        inside = dict(play.inside)
        play.turn()
        ahead |= {number - play.trained for lane, number in play.inside.items() if lane not in inside}
    assert max(ahead) == lag


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("seed", range(20))
def test_rounds_are_whole_and_in_order(lag: int, seed: int) -> None:
    """Without losses every round has each lane once, in order; with losses at most once, and no number is left out."""
    calm, stormy = Play(seed, 4, lag, lossy=False), Play(seed, 4, lag, lossy=True)
    for _ in range(800):
        calm.turn()
        stormy.turn()
    assert len(calm.handed) > 20
    assert len(stormy.handed) > 20
    for number, unrolls in enumerate(calm.handed):
        assert [unroll.lane for unroll in unrolls] == [0, 1, 2, 3]
        assert {unroll.round for unroll in unrolls} == {number}
    for number, unrolls in enumerate(stormy.handed):
        lanes = [unroll.lane for unroll in unrolls]
        assert lanes == sorted(set(lanes))
        assert {unroll.round for unroll in unrolls} == {number}
    # What was finished is handed over, but for rounds that somebody is still in.
    assert sum(map(len, stormy.handed)) >= stormy.finished - 4 * (lag + 1)


@pytest.mark.parametrize("seed", range(20))
def test_lost_lanes_hold_up_nobody(seed: int) -> None:
    """Whatever was lost: when the lanes that are there finish and the learner is through, they may begin again."""
    play = Play(seed, 3, 0, lossy=True)
    for _ in range(300):
        play.turn()
    if not play.waiting and not play.inside:
        play.rounds.join(sorted(play.out)[0])
        play.waiting.append(sorted(play.out)[0])
    for lane in list(play.inside):
        play.finish(lane, an_unroll(lane))
        play.waiting.append(lane)
    play.rounds.num_trained = len(play.handed)
    assert all(play.rounds.may_begin(lane) for lane in play.waiting)


def test_a_replacement_joins_the_next_round() -> None:
    """Lane 1 is lost in round 0 and back while lane 0 is still in it: it may not begin before round 1."""
    rounds = Rounds(2, 0)
    for lane in (0, 1):
        assert rounds.begin(lane) == 0
    assert rounds.finish(1, an_unroll(1)) == []
    assert rounds.leave(1) == []
    rounds.join(1)
    assert not rounds.may_begin(1)
    ((one, other),) = rounds.finish(0, an_unroll(0))
    assert (one.lane, other.lane) == (0, 1)
    assert rounds.num_complete == 1
    rounds.num_trained = 1
    assert rounds.may_begin(0) and rounds.may_begin(1)
    assert rounds.begin(0) == 1
    # Lost before it began round 1: the round is lane 0's alone, and lane 1 comes back for round 2.
    assert rounds.leave(1) == []
    rounds.join(1)
    assert not rounds.may_begin(1)
    assert [len(unrolls) for unrolls in rounds.finish(0, an_unroll(0))] == [1]
    rounds.num_trained = 2
    assert rounds.begin(1) == 2


def test_a_round_without_a_transition_is_none() -> None:
    """All lanes are lost before anything came: the learner hears of no round, and numbers go on without a gap."""
    rounds = Rounds(1, 0, first_round=5)
    assert rounds.begin(0) == 5
    assert rounds.finish(0, None) == []
    assert rounds.leave(0) == []
    rounds.join(0)
    assert rounds.may_begin(0)
    rounds.begin(0)
    ((unroll,),) = rounds.finish(0, an_unroll())
    assert unroll.round == 5
    assert rounds.num_complete == 6


def test_without_rounds_unrolls_go_as_they_come() -> None:
    """Async: no gate, one unroll at a time, a lane that is lost and back goes on counting."""
    rounds = Rounds(2, None)
    assert [rounds.begin(0), rounds.begin(0)] == [0, 0]
    unroll = an_unroll()
    assert rounds.finish(0, unroll) == [[unroll]]
    assert rounds.finish(0, None) == []
    assert rounds.leave(0) == []
    rounds.join(0)
    assert rounds.begin(0) == 2
    assert rounds.may_begin(0) and rounds.may_begin(1)
