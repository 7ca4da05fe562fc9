"""How fast the lanes turn: asyncrl against ceilings and peers of the same run.

    python -m benchmarks.rollout                          every named workload
    python -m benchmarks.rollout --workload cartpole-mlp  one of them
    python -m benchmarks.rollout --env CartPole-v1 --lanes 4 --slots 64 --policy mlp   one of your own

Everything measured is a process of its own, one at a time, in rounds; figures are medians over the rounds, ratios
are medians of the ratios within a round. docs/benchmarks.md says how to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from benchmarks.comparing import ratios_to, verdict
from benchmarks.report import SPEED_UNIT, Report, Row, take_peer_pythons
from benchmarks.running import MODULES, PEERS, SUBJECT, RunFailed, middle, peer_counts, run_ours, run_peer
from benchmarks.workloads import BEST_SUBPROCESS, SUBPROCESS_PEERS, WORKLOADS, Target, Workload, named

PEER_SECONDS = 3.0
Name = Literal["cartpole-mlp", "cartpole-8x1", "pong-random", "soak"]
UNITS = {"ms": "ms", "per_s": "/s", "per_step": "bytes", "left": ""}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. An option that is not given is as the workload has it."""

    workload: Annotated[tuple[Name, ...], tyro.conf.UseAppendAction] = ()
    """Named workloads; repeatable. None and no --env: all of them."""
    env: str | None = None
    """Gymnasium id; without --workload, makes a workload of its own."""
    lanes: int | None = None
    slots: int | None = None
    policy: Literal["random", "mlp", "cnn"] | None = None
    seconds: float | None = None
    """Of counting, per run."""
    warmup_s: float | None = None
    servers: str | None = None
    """HOST:PORT,HOST:PORT of running env servers; default: an embedded one."""
    host: Literal["auto", "native", "slots"] | None = None
    autoreset: Literal["same_step", "next_step", "disabled"] | None = None
    bf16: bool | None = None
    """Forward in bfloat16 (--policy cnn)."""
    batch_lanes: int | None = None
    """Lanes that wait for one another before a forward."""
    act_on_loop: bool | None = None
    """Act on the event loop instead of in the inference thread."""
    switch_interval_s: float | None = None
    """sys.setswitchinterval of the client."""
    batch: bool | None = None
    """SCHED_BATCH for the client's threads."""
    core: int | None = None
    """The core that the client's threads share."""
    alone: bool | None = None
    """Keep gRPC's threads and the env server off that core."""
    repeats: int = 3
    ceilings: str | None = None
    """Comma-separated: inline, inline-placed, env-only, grpc-echo; "none"."""
    peers: str | None = None
    """Comma-separated: gym-async, sb3-subproc, envpool, ray; "none"."""
    peer_python: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Interpreters that have what this one has not; also from ASYNCRL_PEER_PYTHON. Repeatable."""
    json: Path | None = None
    plot: Path | None = None
    strict: bool = False
    """Exit with status 1 where a target is missed."""


def chosen(options: Options) -> list[Workload]:
    """The workloads with the options laid over them."""
    names = [workload.name for workload in WORKLOADS] if options.env is None else []
    picked = [named(name) for name in options.workload or names]
    if not picked:
        picked = [replace(WORKLOADS[0], name="custom", targets=())]
    given = {
        field.name: getattr(options, field.name) for field in fields(picked[0].settings) if hasattr(options, field.name)
    }
    given = {name: value for name, value in given.items() if value is not None}
    changes: dict[str, Any] = {}
    for name, known in (("ceilings", MODULES), ("peers", PEERS)):
        text = getattr(options, name)
        if text is not None:
            changes[name] = () if text == "none" else tuple(text.split(","))
            wrong = set(changes[name]) - set(known)
            if wrong:
                raise SystemExit(f"--{name}: {', '.join(sorted(wrong))}? Known are {', '.join(known)}")
    return [replace(workload, settings=replace(workload.settings, **given), **changes) for workload in picked]


class Results:
    """Speeds by name and round, and the figures of our own runs."""

    def __init__(self, workload: Workload, console: Console) -> None:
        self.workload = workload
        self.speeds: dict[str, list[float]] = {}
        self.figures: dict[str, list[float]] = {}
        self.notes: dict[str, str] = {}
        self._console = console
        self._peer_envs: dict[str, int] = {}

    def measure(self, repeats: int) -> None:
        for turn in range(self.workload.repeats or repeats):
            for name in (SUBJECT, *self.workload.ceilings):
                self._ours(name, turn)
            for name in self.workload.peers:
                self._peer(name, turn)

    def _say(self, turn: int, name: str, speed: float | None) -> None:
        text = self.notes.get(name, "failed") if speed is None else f"{speed:,.0f} {SPEED_UNIT}"
        self._console.print(f"  {self.workload.name} round {turn + 1}: {name} {text}", highlight=False)

    def _ours(self, name: str, turn: int) -> None:
        try:
            result = run_ours(name, self.workload.settings)
        except RunFailed as error:
            self.notes[name] = f"failed: {error}"
            self._say(turn, name, None)
            return
        self.speeds.setdefault(name, []).append(result["transitions_per_s"])
        if name == SUBJECT:
            figures = {
                "rows_per_s": result["rows_per_s"],
                "messages_per_s": result["messages_per_s"],
                **result["extra"],
            }
            for figure, value in figures.items():
                self.figures.setdefault(figure, []).append(value)
        self._say(turn, name, result["transitions_per_s"])

    def _peer(self, name: str, turn: int) -> None:
        """First round: the best of several numbers of environments; later ones repeat that."""
        if turn and name not in self._peer_envs:
            return
        tried = peer_counts(name, self.workload.peer_envs)
        counts = (self._peer_envs[name],) if turn else tried
        seconds = min(PEER_SECONDS, self.workload.settings.seconds)
        best: float | None = None
        for count in counts:
            peer = run_peer(name, self.workload.settings.env, count, seconds)
            if peer.steps_per_s is None:
                self.notes.setdefault(name, peer.why)
            elif best is None or peer.steps_per_s > best:
                best, self._peer_envs[name] = peer.steps_per_s, count
        if best is not None:
            self.speeds.setdefault(name, []).append(best)
            self.notes[name] = f"{self._peer_envs[name]} envs, the best of {', '.join(map(str, tried))}"
        self._say(turn, name, best)

    def ratios(self) -> dict[str, float]:
        """Ours divided by each other."""
        others = {name: speeds for name, speeds in self.speeds.items() if name != SUBJECT}
        found = ratios_to(self.speeds.get(SUBJECT, []), others)
        subprocess_peers = [found[name] for name in SUBPROCESS_PEERS if name in found]
        if len(subprocess_peers) > 1:
            found[BEST_SUBPROCESS] = min(subprocess_peers)
        return found

    def rows(self) -> Iterator[Row]:
        name = self.workload.name
        for other in (SUBJECT, *self.workload.ceilings, *self.workload.peers):
            speeds = self.speeds.get(other)
            value = middle(speeds) if speeds else None
            ratios = self.ratios() if other == SUBJECT else {}
            yield Row(name, other, value, SPEED_UNIT, ratios, self.notes.get(other, ""))
        for figure, values in self.figures.items():
            yield Row(name, f"{SUBJECT} {figure}", middle(values), _unit(figure))
        yield from (self._verdict(target) for target in self.workload.targets)

    def _verdict(self, target: Target) -> Row:
        ratios = self.ratios()
        values = self.figures.get(target.of)
        value = ratios.get(target.of) if values is None else middle(values)
        return verdict(self.workload.name, target, value, _unit(target.of) if values is not None else "×")


def _unit(figure: str) -> str:
    """The unit that a figure's name ends in, before the role."""
    name = figure.split(" ")[0]
    if name.startswith("cpu_us"):
        return "µs"
    if name.startswith("rss_mib"):
        return "MiB"
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def main(options: Options) -> int:
    take_peer_pythons(options.peer_python)
    report = Report(SUBJECT, SPEED_UNIT, options.json, options.plot, options.strict, 140)
    console = report.console()
    return report.make((Results(workload, console) for workload in chosen(options)), options.repeats, console)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
