"""The dashboard's thread: plain lines, a live panel, and screens that hang or go away."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from asyncrl.run.dashboard import Dashboard
from asyncrl.run.dashboard_view import Snapshot

SHOT = Snapshot(algorithm="ppo", env_id="CartPole-v1", seed=1, run_dir="runs/x", total_steps=1000, sps=10)


class Screen(io.StringIO):
    """Counts writes, and hangs on request."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.written = threading.Semaphore(0)

    def write(self, text: str) -> int:
        self.gate.wait(30)
        self.written.release()
        return super().write(text)


def plain(screen: Screen, plain_every_s: float = 10) -> Dashboard:
    return Dashboard(Console(file=screen, width=200, color_system=None), live=False, plain_every_s=plain_every_s)


def test_plain_lines() -> None:
    """One at the beginning, one per ten seconds of the run's clock, one at the end; every event in between."""
    screen = Screen()
    with plain(screen) as dashboard:
        for elapsed_s, num_events in ((1, 0), (2, 0), (5, 1), (11, 1), (12, 1)):
            events = ((5.0, "lane 0 lost"),) * num_events
            before = screen.tell()
            dashboard.show(replace(SHOT, elapsed_s=elapsed_s, events=events, num_events=num_events))
            if elapsed_s in (1, 5, 11):
                while screen.tell() == before:
                    screen.written.acquire(timeout=10)
    lines = screen.getvalue().splitlines()
    assert [text.split("]")[0] for text in lines] == ["[0:00:01", "[0:00:05", "[0:00:11", "[0:00:12"]
    assert lines[1] == "[0:00:05]  ! lane 0 lost"


def test_a_change_of_state_is_told_at_once() -> None:
    """Evaluation begins before the next line is due."""
    screen = Screen()
    with plain(screen, plain_every_s=1000) as dashboard:
        for state in ("training", "evaluating"):
            before = screen.tell()
            dashboard.show(replace(SHOT, state=state))
            while screen.tell() == before:
                screen.written.acquire(timeout=10)
    assert [text.split()[1] for text in screen.getvalue().splitlines()] == ["training", "evaluating"]


def test_a_screen_that_hangs_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Showing goes on, and closing gives up after its patience."""
    monkeypatch.setattr("asyncrl.run.dashboard.PATIENCE_S", 0.05)
    screen = Screen()
    screen.gate.clear()
    dashboard = plain(screen)
    dashboard.start()
    for step in range(1000):
        dashboard.show(replace(SHOT, step=step))
    dashboard.close()
    assert screen.getvalue() == ""
    screen.gate.set()


def test_a_screen_that_is_gone_ends_the_drawing_alone() -> None:
    """A closed pipe: no exception in any thread, and closing works."""
    screen = Screen()
    screen.close()
    with plain(screen) as dashboard:
        dashboard.show(SHOT)
    dashboard.close()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error"), ValueError("closed")])
def test_a_screen_that_is_gone_costs_no_status(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines before, while and after it is open: nobody who says something hears of it, and no exit is asked for."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)  # rich puts another standard output in its place
    dashboard = Dashboard(Console(file=Gone(), width=200, color_system=None), live=False)
    dashboard.say("before")
    with dashboard:
        dashboard.say("while")
        dashboard.show(SHOT)
    dashboard.say("after")


def test_the_last_snapshot_stays_on_the_screen() -> None:
    """A live panel shows how the run ended."""
    screen = Screen()
    console = Console(file=screen, width=80, height=30, force_terminal=True, color_system=None)
    with Dashboard(console, live=True) as dashboard:
        dashboard.show(SHOT)
        dashboard.show(replace(SHOT, state="finished", step=1000))
    assert "1,000 of 1,000 steps (100.0 %)" in screen.getvalue()
    assert "finished" in screen.getvalue()


@pytest.mark.parametrize(("terminal", "ci", "live"), [(True, "", True), (True, "true", False), (False, "", False)])
def test_live_on_terminals_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool, ci: str, live: bool) -> None:
    """And not under CI, whatever it calls itself."""
    monkeypatch.setenv("CI", ci)
    assert Dashboard(Console(file=io.StringIO(), force_terminal=terminal)).is_live is live


def test_what_is_said_is_shown_once() -> None:
    """Between the lines while it is open, at once before and after; nobody who says something waits for the screen."""
    screen = Screen()
    dashboard = plain(screen)
    dashboard.say("before")
    with dashboard:
        screen.gate.clear()
        for number in range(100):
            dashboard.say(f"line {number}")
        screen.gate.set()
    dashboard.say("after")
    assert screen.getvalue().splitlines() == ["before", *(f"line {number}" for number in range(100)), "after"]


def test_what_is_said_stands_above_the_panel() -> None:
    """On a terminal: whole, once, and the panel is drawn below it."""
    screen = Screen()
    with Dashboard(Console(file=screen, width=100, height=30, force_terminal=True), live=True) as dashboard:
        dashboard.say("resumes runs/x")
        dashboard.show(SHOT)
    drawn = screen.getvalue()
    assert drawn.count("resumes runs/x") == 1
    assert drawn.index("resumes runs/x") < drawn.rindex("CartPole-v1")
