"""Replay memory: what it holds in how much room, and how fast batches come out of it.

    python -m benchmarks.replay                          every workload; the first one takes 8 GB
    python -m benchmarks.replay --workload per-512       one of them
    python -m benchmarks.replay --peer-python ~/peers/replay/bin/python

Everything measured is a process of its own, one at a time, in rounds; figures are medians over the rounds, ratios are
medians of the ratios within a round. docs/replay.md says how to get the peers, and how to read the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import tyro
from rich.console import Console

from benchmarks.comparing import asked, ratios_to, spelt, verdict
from benchmarks.replay_peers.drawing import DrawSettings
from benchmarks.report import Report, Row, take_peer_pythons
from benchmarks.running import RunFailed, interpreter_for, middle, run
from benchmarks.workloads import Target

SUBJECT: Final = "asyncrl"
UNIT: Final = "batches/s"
UNITS: Final = {"rss_gb": "GB", "transitions": "", "insert_us": "µs/step", "act_us": "µs/step", "insert_per_act": "×"}
WITHIN_S: Final = 300.0
Choice = tuple[str, int]  # a variant, and torch's threads


@dataclass(frozen=True)
class Peer:
    """Another replay. Each of its choices is tried; the best one counts."""

    module: str
    package: str
    choices: tuple[Choice, ...]


PEERS: Final = {
    "torchrl": Peer("benchmarks.replay_peers.torchrl_per", "torchrl", (("", 1), ("", 2))),
    "cpprb": Peer("benchmarks.replay_peers.cpprb_per", "cpprb", (("", 1), ("next_of", 1), ("stack", 1))),
    "sb3": Peer("benchmarks.replay_peers.sb3_uniform", "stable_baselines3", (("", 1), ("once", 1))),
}


@dataclass(frozen=True)
class ReplayWorkload:
    """What is drawn, from how much, beside whom."""

    name: str
    settings: DrawSettings
    peers: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()


VECTORS: Final = DrawSettings("vector", 1_000_000)
WORKLOADS: Final = (
    ReplayWorkload(
        "memory",
        DrawSettings(transitions=1_000_000, variant="memory"),
        targets=(Target("rss_gb", 7.6, at_least=False), Target("transitions", 1_000_000)),
    ),
    ReplayWorkload("per-512", DrawSettings(), ("torchrl", "cpprb"), (Target("torchrl", 1.0), Target("cpprb", 1 / 1.5))),
    ReplayWorkload("uniform-512", DrawSettings(prioritised=False), ("sb3", "torchrl", "cpprb"), (Target("sb3", 1.0),)),
    ReplayWorkload("per-512-vectors", VECTORS, ("torchrl", "cpprb")),
    ReplayWorkload(
        "insert", DrawSettings(transitions=100_000, variant="insert"), targets=(Target("insert_per_act", 0.05, False),)
    ),
)
Name = Literal["memory", "per-512", "uniform-512", "per-512-vectors", "insert"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    workload: Annotated[tuple[Name, ...], tyro.conf.UseAppendAction] = ()
    """Repeatable; none: all of them."""
    seconds: float | None = None
    """Of drawing, per run."""
    repeats: int = 3
    peers: str | None = None
    """Comma-separated: torchrl, cpprb, sb3; "none"."""
    peer_python: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Interpreters that have the peers; also from ASYNCRL_PEER_PYTHON. Repeatable."""
    json: Path | None = None
    plot: Path | None = None
    strict: bool = False
    """Exit with status 1 where a target is missed or a figure for it is."""


def chosen(options: Options) -> list[ReplayWorkload]:
    """The workloads with the options laid over them."""
    picked = [workload for workload in WORKLOADS if workload.name in (options.workload or [workload.name])]
    if options.seconds is not None:
        picked = [replace(each, settings=replace(each.settings, seconds=options.seconds)) for each in picked]
    return [replace(workload, peers=asked(options.peers, workload.peers, PEERS)) for workload in picked]


class Results:
    """Of one workload: speeds by name and round, and our other figures."""

    def __init__(self, workload: ReplayWorkload, console: Console) -> None:
        self.workload = workload
        self.speeds: dict[str, list[float]] = {}
        self.figures: dict[str, list[float]] = {}
        self.notes: dict[str, str] = {}
        self._console = console
        self._best: dict[str, Choice] = {}

    def measure(self, repeats: int) -> None:
        for turn in range(1 if self.workload.settings.variant == "memory" else repeats):
            self._ours(turn)
            for name in self.workload.peers:
                self._peer(name, turn)

    def _ours(self, turn: int) -> None:
        found = self._run("benchmarks.replay_run", self.workload.settings, sys.executable)
        self._say(turn, SUBJECT, found)
        if "why" in found:
            self.notes[SUBJECT] = found["why"]
        elif "batches_per_s" in found:
            self.speeds.setdefault(SUBJECT, []).append(found["batches_per_s"])
        else:
            for figure, value in found.items():
                self.figures.setdefault(figure, []).append(value)

    def _peer(self, name: str, turn: int) -> None:
        """First round: the best of its choices; later ones repeat that."""
        peer = PEERS[name]
        python = interpreter_for(peer.package)
        if python is None:
            self.notes[name] = f"absent: no interpreter with {peer.package}"
            return
        best = 0.0
        for choice in (self._best[name],) if name in self._best else self._choices(peer):
            variant, threads = choice
            settings = replace(self.workload.settings, variant=variant, threads=threads)
            found = self._run(peer.module, settings, python)
            self._say(turn, f"{name} ({spelt(*choice)})", found)
            if found.get("batches_per_s", 0.0) > best:
                best, self._best[name] = found["batches_per_s"], choice
                versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
                self.notes[name] = f"{spelt(*choice)}: the best of {len(self._choices(peer))} ({versions})"
        if best:
            self.speeds.setdefault(name, []).append(best)

    def _choices(self, peer: Peer) -> tuple[Choice, ...]:
        if self.workload.settings.observation == "atari":
            return peer.choices
        return tuple(choice for choice in peer.choices if choice[0] != "stack")

    def _run(self, module: str, settings: DrawSettings, python: str) -> dict[str, Any]:
        try:
            return run(module, asdict(settings), python, WITHIN_S)
        except RunFailed as error:
            return {"why": f"failed: {error}"}

    def _say(self, turn: int, name: str, found: dict[str, Any]) -> None:
        shown = {key: value for key, value in found.items() if key != "versions"}
        self._console.print(f"  {self.workload.name} round {turn + 1}: {name} {shown}", highlight=False, markup=False)

    def ratios(self) -> dict[str, float]:
        """Ours divided by each peer."""
        peers = {name: self.speeds.get(name, []) for name in self.workload.peers}
        return ratios_to(self.speeds.get(SUBJECT, []), peers)

    def rows(self) -> Iterator[Row]:
        workload = self.workload.name
        for name in (SUBJECT, *self.workload.peers) if not self.figures else ():
            speeds = self.speeds.get(name)
            ratios = self.ratios() if name == SUBJECT else {}
            yield Row(workload, name, middle(speeds) if speeds else None, UNIT, ratios, self.notes.get(name, ""))
        for figure, values in self.figures.items():
            yield Row(workload, figure, middle(values), UNITS[figure])
        yield from (self._verdict(target) for target in self.workload.targets)

    def _verdict(self, target: Target) -> Row:
        values = self.figures.get(target.of)
        value = self.ratios().get(target.of) if values is None else middle(values)
        return verdict(self.workload.name, target, value, UNITS.get(target.of, "×"))


def main(options: Options) -> int:
    take_peer_pythons(options.peer_python)
    report = Report(SUBJECT, UNIT, options.json, options.plot, options.strict, 160)
    console = report.console()
    return report.make((Results(workload, console) for workload in chosen(options)), options.repeats, console)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
