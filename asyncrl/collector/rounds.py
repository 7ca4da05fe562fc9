"""`Rounds`: which lane may begin an unroll, and which unrolls go to the learner together.

With rounds, every lane contributes one unroll to each; a lane may begin round r when the learner has finished
r - lag of them. A round is complete when every lane that is there has passed it. A lane that was lost joins the first
round that nobody has begun yet. Without rounds (`lag` None) unrolls go one by one, and may begin at any time.

Invariants: no lane is more than `lag` rounds ahead of the learner (test_no_lane_is_further_ahead_than_its_lag); rounds
come in order, each with one unroll of every lane in it, in order of lane (test_rounds_are_whole_and_in_order); lanes
that are lost hold up nobody (test_lost_lanes_hold_up_nobody).
"""

from __future__ import annotations

from asyncrl.records import Unroll


class Rounds:
    """`first_round` has been reached: so many rounds have been trained on."""

    def __init__(self, num_lanes: int, lag: int | None, first_round: int = 0) -> None:
        self.lag = lag
        self.num_trained = first_round
        self.num_complete = first_round  # rounds that went to the learner
        self._round = [first_round] * num_lanes  # the one each lane is in, or begins next
        self._absent: set[int] = set()
        self._begun = first_round - 1  # the last that any lane has begun
        self._unrolls: dict[int, list[Unroll]] = {}  # by round, of those that are not complete
        self._num_empty = 0  # rounds in which no lane got a transition: the learner never hears of them

    def may_begin(self, lane: int) -> bool:
        if self.lag is None:
            return True
        return self._round[lane] - self._num_empty - self.num_trained <= self.lag

    def begin(self, lane: int) -> int:
        """The number of the unroll that the lane begins. `trained` counts in the numbers that unrolls end with."""
        self._begun = max(self._begun, self._round[lane])
        return self._round[lane]

    def finish(self, lane: int, unroll: Unroll | None) -> list[list[Unroll]]:
        """The lane has passed its round, with an unroll or with nothing; what the learner gets by that."""
        number = self._round[lane]
        self._round[lane] += 1
        if self.lag is None:
            return [[unroll]] if unroll is not None else []
        of_round = self._unrolls.setdefault(number, [])
        if unroll is not None:
            of_round.append(unroll)
        return self._complete()

    def leave(self, lane: int) -> list[list[Unroll]]:
        """The lane is lost; what it was in has been finished. What the learner gets by that."""
        self._absent.add(lane)
        return self._complete()

    def join(self, lane: int) -> None:
        """The lane is there (again)."""
        if lane in self._absent:
            self._absent.remove(lane)
            if self.lag is not None:
                self._round[lane] = self._begun + 1

    def _complete(self) -> list[list[Unroll]]:
        batches: list[list[Unroll]] = []
        while self._unrolls:
            number = min(self._unrolls)
            if any(at <= number for lane, at in enumerate(self._round) if lane not in self._absent):
                break
            unrolls = sorted(self._unrolls.pop(number), key=_lane_of)
            if not unrolls:
                self._num_empty += 1
                continue
            for unroll in unrolls:
                unroll.round = number - self._num_empty
            batches.append(unrolls)
            self.num_complete = number - self._num_empty + 1
        return batches


def _lane_of(unroll: Unroll) -> int:
    return unroll.lane
