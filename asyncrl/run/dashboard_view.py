"""How a run looks in a terminal: pure functions from a `Snapshot` to a panel or to a line.

No clock is read here: the same snapshot gives the same picture (test_the_panel_is_as_drawn).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

FIXED_ROWS: Final = 14  # of the panel without lanes and events, with the line below it
NARROW: Final = 100  # columns below which less is shown


@dataclass(frozen=True, kw_only=True)
class LaneHealth:
    """One lane as its owner sees it."""

    index: int
    server: str
    num_slots: int
    is_up: bool
    losses: int = 0  # how often it was replaced
    steps_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run at one moment. Times in seconds; None: nothing is known yet."""

    algorithm: str
    env_id: str
    seed: int
    run_dir: str
    state: str = "training"  # starting, training, evaluating, saving, stopping, stopped, finished
    step: int = 0
    total_steps: int = 0
    elapsed_s: float = 0.0  # of the whole run, before a resume too
    sps: float = 0.0  # environment steps per second, lately
    learner_sps: float | None = None  # samples per second while it updates
    episodes: int = 0
    mean_return: float | None = None  # of the last 100 episodes
    best_return: float | None = None
    mean_length: float | None = None
    eval_return: float | None = None
    eval_step: int = 0
    lag_mean: float | None = None  # versions between acting and learning
    lag_max: float | None = None
    time_split: Mapping[str, float] = field(default_factory=dict)  # act, wait, train, publish -> share of 1
    losses: Mapping[str, float] = field(default_factory=dict)  # short names
    lanes: tuple[LaneHealth, ...] = ()
    events: tuple[tuple[float, str], ...] = ()  # (elapsed_s, text), oldest first; the last ones
    num_events: int = 0  # with those that are no longer in `events`
    checkpoint_step: int | None = None

    @property
    def eta_s(self) -> float | None:
        left = self.total_steps - self.step
        return left / self.sps if self.sps > 0 and left > 0 else None

    @property
    def share(self) -> float:
        return min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0


def panel(shot: Snapshot, width: int, height: int) -> RenderableType:
    """The live picture, of this width, for a terminal of this height."""
    room = max(height - FIXED_ROWS, 2)
    num_events = min(len(shot.events), max(room // 3, 1), 6)
    num_lanes = max(min(len(shot.lanes), room - num_events, 16), 1)
    rows: list[RenderableType] = [_progress(shot), _figures(shot, width)]
    if shot.lanes:
        rows += [Text(), _lanes(shot.lanes, num_lanes)]
    if num_events:
        rows += [Text(), *(_event(seconds, text) for seconds, text in shot.events[-num_events:])]
    rows += [Text(), _where(shot)]
    title = f"[b]{shot.algorithm}[/] on [b]{_escaped(shot.env_id)}[/], seed {shot.seed}"
    return Panel(
        Group(*rows), title=title, title_align="left", subtitle=shot.state, subtitle_align="right", width=width
    )


def line(shot: Snapshot) -> str:
    """One line of progress, for logs."""
    up = sum(lane.is_up for lane in shot.lanes)
    cells = [
        f"[{duration(shot.elapsed_s)}]",
        f"{shot.state:<10}",
        f"{100 * shot.share:5.1f} %",
        f"step {shot.step:,}/{shot.total_steps:,}",
        f"SPS {shot.sps:,.0f}",
        f"return {number(shot.mean_return)} (best {number(shot.best_return)})",
    ]
    if shot.eval_return is not None:
        cells.append(f"eval {number(shot.eval_return)}")
    if shot.lag_mean is not None:
        cells.append(f"lag {shot.lag_mean:.1f}")
    if shot.lanes:
        cells.append(f"lanes {up}/{len(shot.lanes)}")
    if shot.eta_s is not None:
        cells.append(f"ETA {duration(shot.eta_s)}")
    return "  ".join(cells)


def event_line(seconds: float, text: str) -> str:
    return f"[{duration(seconds)}]  ! {text}"


def duration(seconds: float) -> str:
    """h:mm:ss, with days before it where there are any."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hour}:{minute:02}:{second:02}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _progress(shot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    eta = "-" if shot.eta_s is None else duration(shot.eta_s)
    bar = ProgressBar(total=1.0, completed=shot.share)
    steps = f"{shot.step:,} of {shot.total_steps:,} steps ({100 * shot.share:.1f} %)"
    grid.add_row(bar, steps, duration(shot.elapsed_s), f"ETA {eta}")
    return grid


def _figures(shot: Snapshot, width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", min_width=6)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    returns = {"mean of 100": number(shot.mean_return), "best": number(shot.best_return)}
    if shot.eval_return is not None:
        name = f"eval at {shot.eval_step:,}" if width >= NARROW else "eval"
        returns[name] = number(shot.eval_return)
    if width >= NARROW:
        returns["length"] = number(shot.mean_length, 1)
    returns["episodes"] = f"{shot.episodes:,}"
    speed = {"SPS": f"{shot.sps:,.0f}"}
    if shot.learner_sps is not None:
        speed["learner"] = f"{shot.learner_sps:,.0f}/s"
    if shot.lag_mean is not None:
        speed["policy lag"] = f"{shot.lag_mean:.1f}" + ("" if shot.lag_max is None else f" (max {shot.lag_max:.0f})")
    grid.add_row("return", _pairs(returns))
    grid.add_row("speed", _pairs(speed))
    if shot.time_split:
        grid.add_row("time", _pairs({name: f"{100 * share:.0f} %" for name, share in shot.time_split.items()}))
    if shot.losses:
        most = 6 if width >= NARROW else 3
        grid.add_row("losses", _pairs({name: f"{value:.4g}" for name, value in [*shot.losses.items()][:most]}))
    return grid


def _pairs(values: Mapping[str, str]) -> Text:
    text = Text()
    for index, (name, value) in enumerate(values.items()):
        text.append("   " if index else "").append(name, "dim").append(" ").append(value)
    return text


def _lanes(lanes: tuple[LaneHealth, ...], most: int) -> RenderableType:
    """The ones in trouble first, where not all fit."""
    up = sum(lane.is_up for lane in lanes)
    losses = sum(lane.losses for lane in lanes)
    summary = Text("lanes   ", "bold").append(f"{up} of {len(lanes)} up", "green" if up == len(lanes) else "red")
    summary.append(f"   {losses} replaced" if losses else "", "not bold yellow")
    grid = Table.grid(padding=(0, 2))
    alignments: tuple[JustifyMethod, ...] = ("right", "left", "right", "left", "right", "right")
    for alignment in alignments:
        grid.add_column(justify=alignment, no_wrap=True, overflow="ellipsis")
    shown = lanes
    if len(lanes) > most:
        worst = sorted(lanes, key=lambda lane: (lane.is_up, -lane.losses, lane.steps_per_s))
        shown = tuple(sorted(worst[: most - 1], key=lambda lane: lane.index))
    for lane in shown:
        state = Text("up", "green") if lane.is_up else Text("down", "bold red")
        lost = Text(f"{lane.losses} lost", "yellow" if lane.losses else "dim")
        cells: list[RenderableType] = [
            str(lane.index),
            lane.server,
            f"{lane.num_slots} slots",
            state,
            f"{lane.steps_per_s:,.0f}/s",
            lost,
        ]
        grid.add_row(*cells)
    rest = [Text(f"        and {len(lanes) - len(shown)} more", "dim")] if len(shown) < len(lanes) else []
    return Group(summary, _indented(grid), *rest)


def _indented(content: RenderableType) -> RenderableType:
    grid = Table.grid(padding=0)
    grid.add_column(width=8)
    grid.add_column(no_wrap=True)
    grid.add_row("", content)
    return grid


def _event(seconds: float, text: str) -> Text:
    row = Text(no_wrap=True, overflow="ellipsis")
    return row.append(f"{duration(seconds):<8}", "dim").append(" ".join(text.split()))


def _where(shot: Snapshot) -> Text:
    row = Text(no_wrap=True, overflow="ellipsis", style="dim")
    row.append(f"in {shot.run_dir}")
    if shot.checkpoint_step is not None:
        row.append(f", checkpoint at {shot.checkpoint_step:,}")
    return row


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def new_events(shot: Snapshot, seen: int) -> Iterable[str]:
    """Lines for the events after the first `seen`."""
    fresh = shot.num_events - seen
    if fresh > len(shot.events):
        yield f"{fresh - len(shot.events)} more events, in metrics.jsonl"
    for seconds, text in shot.events[max(len(shot.events) - fresh, 0) :]:
        yield event_line(seconds, text)
