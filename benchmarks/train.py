"""How fast training runs, end to end: `asyncrl train` against other trainers on the same machine.

    python -m benchmarks.train                              every named workload
    python -m benchmarks.train --workload cartpole-4x128    one of them
    python -m benchmarks.train --peer-python ~/peers/train/bin/python --peer-cache ~/peers/cache

Every run is a process of its own, one at a time, in rounds; figures are medians over the rounds, ratios are medians of
the ratios within a round. docs/benchmarks.md says how to get the peers, and how to read the figures.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from benchmarks.comparing import asked, ratios_to, spelt, verdict
from benchmarks.report import Report, Row, take_peer_pythons
from benchmarks.running import middle
from benchmarks.train_running import TrainRun, run_ours, run_peer
from benchmarks.train_workloads import PEERS, SUBJECT, WORKLOADS, Peer, Subject, TrainWorkload
from benchmarks.workloads import Target

UNIT = "SPS"  # environment steps per second
UNITS = {"wall_s": "s", "env_steps": "steps", "eval_episodes": "episodes"}
Name = Literal[
    "cartpole-4x128",
    "cartpole-4x128-slow",
    "cartpole-fast",
    "impala-cartpole",
    "pong-8x128",
    "pong-dqn-32",
    "pong-dqn-4",
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. An option that is not given is as the workload has it."""

    workload: Annotated[tuple[Name, ...], tyro.conf.UseAppendAction] = ()
    """Repeatable; none: all of them."""
    warmup_s: float | None = None
    """From the first count of steps."""
    seconds: float | None = None
    """Of counting, per run; not of whole runs."""
    repeats: int = 3
    peers: str | None = None
    """Comma-separated: cleanrl, sb3, sb3-dqn, sample-factory, sample-factory-native, rllib; "none"."""
    threads: int | None = None
    """Torch threads of the peers; default: the best of 1 and 2."""
    ours: str = ""
    """Further options of `asyncrl train`, in one word: --ours="--lanes 2"."""
    peer_python: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Interpreters that have the peers; also from ASYNCRL_PEER_PYTHON. Repeatable."""
    peer_cache: Path | None = None
    """Folder of the checkouts of peers that are no packages; also from ASYNCRL_PEER_CACHE."""
    json: Path | None = None
    plot: Path | None = None
    strict: bool = False
    """Exit with status 1 where a target is missed or a figure for it is."""


def chosen(options: Options) -> list[TrainWorkload]:
    """The workloads with the options laid over them."""
    picked = [workload for workload in WORKLOADS if workload.name in (options.workload or [workload.name])]
    for name in ("warmup_s", "seconds"):
        value: Any = getattr(options, name)
        if value is not None:
            picked = [replace(each, settings=replace(each.settings, **{name: value})) for each in picked]
    return [replace(workload, peers=asked(options.peers, workload.peers, PEERS)) for workload in picked]


class Results:
    """SPS by name and round, and the figures of our whole runs, `SUBJECT FIGURE`."""

    def __init__(self, workload: TrainWorkload, options: Options, console: Console) -> None:
        self.workload = workload
        self.speeds: dict[str, list[float]] = {}
        self.figures: dict[str, list[float]] = {}
        self.notes: dict[str, str] = {}
        self._options = options
        self._console = console
        self._best: dict[str, tuple[str, int]] = {}

    def measure(self, repeats: int) -> None:
        for turn in range(repeats):
            for subject in self.workload.subjects:
                self._ours(subject, turn)
            for name in self.workload.peers:
                self._peer(name, turn)

    def _say(self, turn: int, name: str, run: TrainRun) -> None:
        text = run.why if run.sps is None else f"{run.sps:,.0f} {UNIT}"
        self._console.print(f"  {self.workload.name} round {turn + 1}: {name} {text}", highlight=False, markup=False)

    def _ours(self, subject: Subject, turn: int) -> None:
        run = run_ours(subject, self.workload.settings, shlex.split(self._options.ours))
        self._say(turn, subject.name, run)
        if run.sps is None or run.why:
            self.notes[subject.name] = run.why
            return
        self.notes[subject.name] = shlex.join([*subject.options, *shlex.split(self._options.ours)])
        self.speeds.setdefault(subject.name, []).append(run.sps)
        for figure, value in run.figures.items():
            self.figures.setdefault(f"{subject.name} {figure}", []).append(value)

    def _peer(self, name: str, turn: int) -> None:
        """First round: the best of its choices; later ones repeat that."""
        if turn and name not in self._best:
            return
        peer = PEERS[name]
        tried = self._choices(peer)
        best = TrainRun(None)
        for variant, threads in (self._best[name],) if turn else tried:
            run = run_peer(peer, self.workload.settings, variant, threads)
            self._say(turn, f"{name} ({spelt(variant, threads)})", run)
            if run.sps is None:
                self.notes.setdefault(name, run.why)
            elif best.sps is None or run.sps > best.sps:
                best, self._best[name] = run, (variant, threads)
            if run.why.startswith("absent;"):
                break
        if best.sps is not None:
            self.speeds.setdefault(name, []).append(best.sps)
            others = "; ".join(spelt(*choice) for choice in tried)
            self.notes[name] = f"{spelt(*self._best[name])}: the best of {others} ({best.why})"

    def _choices(self, peer: Peer) -> list[tuple[str, int]]:
        wanted = self._options.threads
        return [choice for choice in peer.choices if wanted in (None, choice[1])] or list(peer.choices)

    def ratios(self, subject: str) -> dict[str, float]:
        """This one of ours divided by each peer."""
        peers = {name: self.speeds.get(name, []) for name in self.workload.peers}
        return ratios_to(self.speeds.get(subject, []), peers)

    def rows(self) -> Iterator[Row]:
        subjects = [subject.name for subject in self.workload.subjects]
        for name in (*subjects, *self.workload.peers):
            speeds = self.speeds.get(name)
            value = middle(speeds) if speeds else None
            ratios = self.ratios(name) if name in subjects else {}
            yield Row(self.workload.name, name, value, UNIT, ratios, self.notes.get(name, ""))
        for figure, values in self.figures.items():
            yield Row(self.workload.name, figure, middle(values), UNITS.get(figure.split()[-1], ""))
        yield from (self._verdict(target) for target in self.workload.targets)

    def _verdict(self, target: Target) -> Row:
        subject, _, other = target.of.partition(" / ")
        values = self.figures.get(target.of)
        value = self.ratios(subject).get(other) if values is None else middle(values)
        return verdict(self.workload.name, target, value, "×" if other else "")


def main(options: Options) -> int:
    take_peer_pythons(options.peer_python)
    if options.peer_cache is not None:
        os.environ["ASYNCRL_PEER_CACHE"] = str(options.peer_cache.resolve())
    report = Report(SUBJECT, UNIT, options.json, options.plot, options.strict, 160)
    console = report.console()
    return report.make((Results(workload, options, console) for workload in chosen(options)), options.repeats, console)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
