"""`asyncrl train`: collects with a random policy until the learners are there, and says so."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np
import tyro
from gymnasium.vector.utils import batch_space
from rich.console import Console
from rich.live import Live
from rich.table import Table

from asyncrl.cli.access import Reach
from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.client.loop_factory import new_event_loop
from asyncrl.errors import ConfigError
from asyncrl.gym_spaces import ValueLayout
from asyncrl.wire.flags import NO_TRANSITION
from asyncrl.wire.tensors import Array

ALGORITHMS: Final = ("ppo", "a2c", "dqn", "c51", "rainbow", "apex", "impala", "appo")
WINDOW: Final = 100  # episodes in the mean return
PREPARED: Final = 64  # random actions per lane, used in turn
PLAIN_EVERY_S: Final = 2.0
LIVE_EVERY_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Train(Reach):
    """Collects transitions and reports episodes, returns and speed.

    This version has no learner yet: actions are random, whatever the algorithm. Everything else is real: the env
    server (one of its own where none is named), the lanes, the streams, the replacement of what breaks.
    """

    algorithm: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ALGORITHM")] = "random"
    """What will train once the learners are there: ppo, a2c, dqn, c51, rainbow, apex, impala, appo."""

    env_id: Annotated[str, tyro.conf.arg(metavar="ID")] = "CartPole-v1"
    """The environment: an id, or an alias of the servers."""

    num_envs: Annotated[int, tyro.conf.arg(metavar="N")] = 8
    """How many of it."""

    servers: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT,...", help_behavior_hint="(default: our own)")] = (
        None
    )
    """Env servers; without it one is started as a child process."""

    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Keyword arguments for the environment."""

    lanes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the cores)")] = None
    """Over how many processes the environments are spread."""

    seed: int = 1
    """Of environments and actions."""

    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 8.0
    """How long to collect."""

    total_timesteps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: no limit)")] = None
    """Stop after so many transitions."""


@dataclass
class Tally:
    """What was collected."""

    began_s: float
    transitions: int = 0
    episodes: int = 0
    lost_lanes: int = 0
    rebuilt_slots: int = 0
    best: float = -np.inf
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, arrival: Arrival) -> None:
        if arrival.rows is None:
            self.lost_lanes += 1
            return
        rows = arrival.rows
        self.transitions += int(np.count_nonzero((rows.flags & NO_TRANSITION) == 0))
        self.rebuilt_slots += len(rows.rebuilt)
        if rows.stats is not None:
            self.episodes += len(rows.stats.rows)
            self.recent.extend(rows.stats.returns.tolist())
            self.lengths.extend(rows.stats.lengths.tolist())
            self.best = max(self.best, float(rows.stats.returns.max()))

    def line(self, now_s: float) -> str:
        """One line of progress."""
        elapsed_s = max(now_s - self.began_s, 1e-9)
        mean = f"{np.mean(self.recent):.2f}" if self.recent else "-"
        return (
            f"{elapsed_s:5.1f} s  {self.transitions:>9,} transitions  {self.transitions / elapsed_s:>9,.0f}/s  "
            f"{self.episodes:>6,} episodes  mean return {mean}"
        )


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(Train, prog="asyncrl train", args=list(arguments))
    if options.algorithm not in (*ALGORITHMS, "random"):
        close = difflib.get_close_matches(options.algorithm, ALGORITHMS, n=1, cutoff=0.3) or ["ppo"]
        raise ConfigError(f"there is no algorithm {options.algorithm!r}; did you mean {close[0]!r}?")
    console = Console(highlight=False)
    console.print(
        "No learner in this version yet: actions are random, and nothing is learned.",
        style="bold yellow",
        soft_wrap=True,
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_collect(options, console))
    return 0


async def _collect(options: Train, console: Console) -> None:
    where = options.servers or "an env server of its own"
    console.print(f"{options.num_envs} x {options.env_id} on {where}, seed {options.seed}", soft_wrap=True)
    settings: dict[str, Any] = {"env": options.env_id, "num_envs": options.num_envs, "seed": options.seed}
    settings |= {"lanes": options.lanes, "kwargs": _kwargs(options.env_kwargs)}
    async with connect(options.servers, access=options.access, **settings) as fleet:
        loop = asyncio.get_running_loop()
        tally = Tally(loop.time())
        policies = {lane.index: _random_actions(fleet, lane, options.seed) for lane in fleet.lanes}
        with _reporting(console, tally), suppress(TimeoutError):
            async with asyncio.timeout_at(tally.began_s + options.seconds):  # `recv` loses nothing when it is cancelled
                while not _is_enough(tally, options.total_timesteps):
                    arrival = await fleet.recv()
                    tally.add(arrival)
                    if arrival.rows is not None:
                        arrival.lane.step(next(policies[arrival.lane.index]))
        console.print(_report(tally, loop.time(), fleet))


def _is_enough(tally: Tally, total: int | None) -> bool:
    return total is not None and tally.transitions >= total


def _kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--env-kwargs is no JSON: {error}") from None
    if not isinstance(kwargs, dict):
        raise ConfigError("--env-kwargs has to be a JSON object, such as '{\"noop_max\": 0}'")
    return kwargs


def _random_actions(fleet: Fleet, lane: FleetLane, seed: int) -> Iterator[list[Array]]:
    """Leaf arrays `[B, *shape]` for ever."""
    assert fleet.spec is not None
    layout = ValueLayout(fleet.spec.action)
    space = batch_space(layout.space, lane.num_slots)
    space.seed(seed + lane.index)
    prepared = [layout.leaves_of(space.sample(), lane.num_slots) for _ in range(PREPARED)]
    while True:
        yield from prepared


@contextmanager
def _reporting(console: Console, tally: Tally) -> Iterator[None]:
    """Progress by timers of the loop: a line that renews itself on a terminal, plain lines elsewhere."""
    loop = asyncio.get_running_loop()
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    every_s = PLAIN_EVERY_S if live is None else LIVE_EVERY_S
    timer: asyncio.TimerHandle | None = None

    def report() -> None:
        nonlocal timer
        if live is None:
            console.print(tally.line(loop.time()), soft_wrap=True)
        else:
            live.update(tally.line(loop.time()), refresh=True)
        timer = loop.call_later(every_s, report)

    timer = loop.call_later(every_s, report)
    if live is not None:
        live.start()
    try:
        yield
    finally:
        timer.cancel()
        if live is not None:
            live.stop()


def _report(tally: Tally, now_s: float, fleet: Fleet) -> Table:
    elapsed_s = now_s - tally.began_s
    table = Table(title="random policy, no learner", title_justify="left", show_header=False)
    rows: list[tuple[str, str]] = [
        ("transitions", f"{tally.transitions:,}"),
        ("transitions/s", f"{tally.transitions / max(elapsed_s, 1e-9):,.0f}"),
        ("episodes", f"{tally.episodes:,}"),
        ("mean return, last 100", f"{np.mean(tally.recent):.2f}" if tally.recent else "-"),
        ("best return", f"{tally.best:.2f}" if tally.recent else "-"),
        ("mean length, last 100", f"{np.mean(tally.lengths):.1f}" if tally.lengths else "-"),
        ("lanes", f"{len(fleet.lanes)} of {fleet.lanes[0].num_slots} environments"),
        ("lost lanes, rebuilt slots", f"{tally.lost_lanes}, {tally.rebuilt_slots}"),
        ("seconds", f"{elapsed_s:.1f}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table
