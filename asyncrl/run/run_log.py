"""`RunLog`: what happened to a run that whoever reads its curves should know, one line per event.

Invariants: the last events are kept, and all are counted (test_events_are_numbered); each lost lane is one event and
one loss of that lane, but for the evaluation's, which are nobody's who trains (test_losses_are_those_of_training);
steps with NaN are told of at the first, and at ten times as many (test_nonfinite_steps_are_told_of_now_and_then), also
where no round comes of the others (test_nonfinite_steps_are_told_of_without_a_round).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from asyncrl.client.fleet_config import FAULTS, FleetEvent
from asyncrl.collector.counts import CollectorStats
from asyncrl.learner.loop import Hang
from asyncrl.run.recorders import Recorder

KEPT_EVENTS: Final = 1000
LOOK_EVERY_S: Final = 1.0


class RunLog:
    """Loop only. `now` gives elapsed seconds and environment steps of the run."""

    def __init__(self, recorder: Recorder, now: Callable[[], tuple[float, int]]) -> None:
        self.events: deque[tuple[float, str]] = deque(maxlen=KEPT_EVENTS)  # (elapsed_s, text), newest last
        self.num_events = 0
        self.losses_by_lane: Counter[int] = Counter()
        self._recorder = recorder
        self._now = now
        self._nonfinite_told = 1  # steps that are worth an event

    def tell(self, kind: str, text: str) -> None:
        """An event. Of a text of several lines the first is shown, and all are recorded."""
        elapsed_s, step = self._now()
        self.num_events += 1
        self.events.append((elapsed_s, f"{kind}: {text.splitlines()[0] if text else ''}"))
        self._recorder.event(step, kind, text)

    def of_fleet(self, event: FleetEvent) -> None:
        """Of the lanes that are trained on."""
        self.losses_by_lane[event.lane] += event.kind == "lane_lost"
        self._of_lane(event, "")

    def of_evaluation(self, event: FleetEvent) -> None:
        self._of_lane(event, " of the evaluation")

    def _of_lane(self, event: FleetEvent, whose: str) -> None:
        if event.kind in FAULTS:
            self.tell(event.kind, f"lane {event.lane}{whose} at {event.address}: {event.cause} {event.text}".strip())

    def learner_hangs(self, hang: Hang) -> None:
        self.tell("learner_hangs", f"its update has taken {hang.busy_s:.1f} s, where {hang.median_s:.2g} s is usual")

    @contextlib.contextmanager
    def watching(self, stats: CollectorStats, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
        """Steps with NaN are told of while it is open and at its end, whether a round comes of the others or not."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            self.nonfinite_steps(stats.nonfinite_steps)
            timer = loop.call_later(every_s, look)

        look()
        try:
            yield
        finally:
            assert timer is not None
            timer.cancel()
            self.nonfinite_steps(stats.nonfinite_steps)

    def nonfinite_steps(self, count: int) -> None:
        """So many were left out up to now."""
        if count >= self._nonfinite_told:
            self._nonfinite_told = 10 * count
            self.tell("nonfinite", f"{count} steps with NaN or infinity were left out so far")
