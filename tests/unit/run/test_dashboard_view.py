"""The picture of a run, drawn from snapshots with a fixed clock."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from asyncrl.run.dashboard_view import LaneHealth, Snapshot, duration, line, new_events, number, panel


def lane(index: int, *, is_up: bool = True, losses: int = 0) -> LaneHealth:
    return LaneHealth(index=index, server="10.0.0.1:50051", num_slots=64, is_up=is_up, losses=losses, steps_per_s=2500)


SHOT = Snapshot(
    algorithm="ppo",
    env_id="CartPole-v1",
    seed=1,
    run_dir="runs/CartPole-v1__ppo__1__1795015805",
    step=123_456,
    total_steps=500_000,
    elapsed_s=72,
    sps=5000,
    learner_sps=18_210,
    episodes=1234,
    mean_return=412.3,
    best_return=500,
    mean_length=412.3,
    eval_return=489.2,
    eval_step=100_000,
    lag_mean=0.25,
    lag_max=1,
    time_split={"act": 0.41, "wait": 0.12, "train": 0.45, "publish": 0.02},
    losses={"value": 12.345, "policy": -0.00123, "entropy": 0.5512, "kl": 0.01},
    lanes=(lane(0), lane(1, is_up=False, losses=2)),
    events=((12.0, "checkpoint at 100,000"), (61.0, "lane 1 lost: crash")),
    num_events=2,
    checkpoint_step=100_000,
)
DRAWN = """\
╭─ ppo on CartPole-v1, seed 1 ─────────────────────────────────────────────────╮
│ ━━━━━                123,456 of 500,000 steps (24.7 %)  0:01:12  ETA 0:01:15 │
│ return  mean of 100 412.30   best 500.00   eval 489.20   episodes 1,234      │
│ speed   SPS 5,000   learner 18,210/s   policy lag 0.2 (max 1)                │
│ time    act 41 %   wait 12 %   train 45 %   publish 2 %                      │
│ losses  value 12.35   policy -0.00123   entropy 0.5512                       │
│                                                                              │
│ lanes   1 of 2 up   2 replaced                                               │
│         0  10.0.0.1:50051  64 slots  up    2,500/s  0 lost                   │
│         1  10.0.0.1:50051  64 slots  down  2,500/s  2 lost                   │
│                                                                              │
│ 0:00:12 checkpoint at 100,000                                                │
│ 0:01:01 lane 1 lost: crash                                                   │
│                                                                              │
│ in runs/CartPole-v1__ppo__1__1795015805, checkpoint at 100,000               │
╰─────────────────────────────────────────────────────────────────── training ─╯
"""


def drawn(shot: Snapshot, width: int = 80, height: int = 40) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(panel(shot, width, height))
    return out.getvalue()


def test_the_panel_is_as_drawn() -> None:
    """At 80 columns and without colours, everything where a reader looks for it."""
    assert drawn(SHOT).replace("╸", "━") == DRAWN


def test_a_run_that_has_just_begun_can_be_drawn() -> None:
    """Nothing is known: dashes, no division by nothing."""
    shot = Snapshot(algorithm="ppo", env_id="A[b]-v1", seed=1, run_dir="runs/x")
    text = drawn(shot)
    assert "A[b]-v1" in text
    assert "mean of 100 -" in text
    assert "ETA -" in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 250])
@pytest.mark.parametrize("height", [10, 16, 24, 50])
@pytest.mark.parametrize("num_lanes", [0, 1, 9, 200])
def test_the_panel_fits(width: int, height: int, num_lanes: int) -> None:
    """No line is wider than the terminal; from 18 rows on the picture is no higher than it."""
    lanes = tuple(lane(index) for index in range(num_lanes))
    text = drawn(Snapshot(**{**vars(SHOT), "lanes": lanes}), width, height)
    assert max(map(len, text.splitlines())) <= width
    if height >= 18:
        assert len(text.splitlines()) < height


def test_lanes_in_trouble_are_seen_where_not_all_fit() -> None:
    """Two of a hundred: the one that is down and the one that was lost most often."""
    lanes = tuple(lane(index, is_up=index != 90, losses=5 * (index == 70)) for index in range(100))
    text = drawn(Snapshot(**{**vars(SHOT), "lanes": lanes}), height=24)
    assert "99 of 100 up" in text
    assert any(row.split()[1:2] == ["90"] and "down" in row for row in text.splitlines())
    assert any(row.split()[1:2] == ["70"] and "5 lost" in row for row in text.splitlines())


def test_a_line_has_the_same_figures() -> None:
    """For logs: time, progress, speed, returns, lanes and what is left."""
    assert line(SHOT) == (
        "[0:01:12]  training     24.7 %  step 123,456/500,000  SPS 5,000  return 412.30 (best 500.00)  eval 489.20  "
        "lag 0.2  lanes 1/2  ETA 0:01:15"
    )


def test_every_event_comes_once() -> None:
    """Those after the ones that were seen; more than are kept are counted."""
    assert list(new_events(SHOT, 2)) == []
    assert list(new_events(SHOT, 1)) == ["[0:01:01]  ! lane 1 lost: crash"]
    later = Snapshot(**{**vars(SHOT), "num_events": 7})
    assert next(iter(new_events(later, 2))) == "3 more events, in metrics.jsonl"
    assert len(list(new_events(later, 2))) == 3


def test_durations_and_numbers() -> None:
    """Hours, then days; a dash for what is not known."""
    assert [duration(seconds) for seconds in (0.9, 61, 86_399, 90_061)] == [
        "0:00:00",
        "0:01:01",
        "23:59:59",
        "1 d 1:01:01",
    ]
    assert [number(None), number(0.0), number(-1234.567)] == ["-", "0.00", "-1,234.57"]
