"""What a run tells of itself."""

from __future__ import annotations

import asyncio

from asyncrl.client.fleet_config import FleetEvent
from asyncrl.collector.counts import CollectorStats
from asyncrl.learner.loop import Hang
from asyncrl.run.run_log import KEPT_EVENTS, RunLog
from tests.unit.run.tiny_training import Notes


def made() -> tuple[RunLog, Notes]:
    notes = Notes()
    return RunLog(notes, lambda: (2.5, 640)), notes


def test_only_first_lines_are_shown() -> None:
    """All of it is recorded; the oldest make room."""
    log, notes = made()
    for number in range(KEPT_EVENTS + 5):
        log.tell("kind", f"{number}\nmore")
    assert log.num_events == len(notes.events) == KEPT_EVENTS + 5
    assert len(log.events) == KEPT_EVENTS
    assert log.events[0] == (2.5, "kind: 5")
    assert notes.events[0] == ("kind", "0\nmore")


def test_losses_are_those_of_training() -> None:
    """Lanes of an evaluation have numbers, too; news are no events."""
    log, notes = made()
    for _ in range(2):
        log.of_fleet(FleetEvent("lane_lost", 1, "host:1", "crash", "signal 9"))
    log.of_evaluation(FleetEvent("lane_lost", 1, "host:1", "crash"))
    log.of_fleet(FleetEvent("stream_resumed", 0, "host:1"))
    log.of_fleet(FleetEvent("lane_opened", 0, "host:1"))
    assert dict(log.losses_by_lane) == {1: 2, 0: 0}
    assert notes.events == [
        ("lane_lost", "lane 1 at host:1: crash signal 9"),
        ("lane_lost", "lane 1 at host:1: crash signal 9"),
        ("lane_lost", "lane 1 of the evaluation at host:1: crash"),
        ("stream_resumed", "lane 0 at host:1:"),
    ]


def test_nonfinite_steps_are_told_of_now_and_then() -> None:
    """At 1, 12, 130, ...: not once a round."""
    log, notes = made()
    for count in (0, 0, 1, 5, 12, 12, 119, 130):
        log.nonfinite_steps(count)
    assert [text.split()[0] for _, text in notes.events] == ["1", "12", "130"]


async def test_nonfinite_steps_are_told_of_without_a_round() -> None:
    """While they come, and at the end those that came after the last look."""
    log, notes = made()
    stats = CollectorStats(0)
    with log.watching(stats, every_s=0.001):
        stats.nonfinite_steps = 3
        async with asyncio.timeout(30):
            while not notes.events:
                await asyncio.sleep(0.001)
    with log.watching(stats, every_s=1000):
        stats.nonfinite_steps = 40
    assert [text.split()[0] for text in notes.of_kind("nonfinite")] == ["3", "40"]


def test_a_hang_has_its_figures() -> None:
    """How long, and what is usual."""
    log, notes = made()
    log.learner_hangs(Hang(12.34, 0.123))
    assert notes.of_kind("learner_hangs") == ["its update has taken 12.3 s, where 0.12 s is usual"]
