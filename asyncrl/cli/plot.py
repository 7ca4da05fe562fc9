"""`asyncrl plot`: curves of runs as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.errors import ConfigError
from asyncrl.run.plots import plot_runs
from asyncrl.run.run_dir import RunDir, run_dirs


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draws return, losses, speed and policy lag over environment steps.

    Runs that differ in their seed alone are drawn as one: mean, and shaded what lies between them.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """Directories of runs, or directories full of them."""

    out: Annotated[
        Path | None, tyro.conf.arg(metavar="PNG", help_behavior_hint="(default: plot.png in the run, of several here)")
    ] = None
    """Where the picture goes."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(Plot, prog="asyncrl plot", args=list(arguments))
    runs = _runs(options.runs)
    out = options.out or (runs[0].plot if len(runs) == 1 else Path("plot.png"))
    if not out.parent.is_dir():
        raise ConfigError(f"there is no directory {out.parent} for {out.name}")
    plot_runs(runs, out)
    print(out)
    return 0


def _runs(paths: Sequence[Path]) -> list[RunDir]:
    if not paths:
        raise ConfigError("name one run or more: `asyncrl runs` lists them")
    found: list[RunDir] = []
    for path in paths:
        here = run_dirs(path)
        if not here:
            raise ConfigError(f"{path} is no run, and there is none in it; `asyncrl runs` lists them")
        found += here
    return found
