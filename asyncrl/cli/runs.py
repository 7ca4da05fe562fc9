"""`asyncrl runs`: a table of the runs in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asyncrl.run.listing import RunSummary, State, list_runs

STYLES: Final[dict[State, str]] = {"running": "green", "finished": "", "unfinished": "yellow", "new": "dim"}
WIDE: Final = 110  # columns of a terminal; below it, what the names of runs usually say is left out
ONLY_WIDE: Final = ("env", "algo", "seed", "SPS")
LEFT: Final = ("run", "env", "algo", "state")


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Lists runs from old to new: how far each is, what it returns, and whether it lives."""

    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Where the runs are."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(Runs, prog="asyncrl runs", args=list(arguments))
    console = Console(highlight=False)
    found = list_runs(options.directory)
    if not found:
        console.print(f"no runs in {options.directory}", soft_wrap=True, markup=False)
        return 0
    console.print(_table(found, console.width))
    return 0


def _table(summaries: Sequence[RunSummary], width: int) -> Table:
    rows = [_cells(each) for each in summaries]
    names = [name for name in rows[0] if width >= WIDE or name not in ONLY_WIDE]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right", overflow="fold", no_wrap=name != "run")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(each: RunSummary) -> dict[str, str]:
    style = STYLES[each.state]
    return {
        "run": escape(each.run.name),
        "env": escape(each.env_id),
        "algo": escape(each.algorithm),
        "seed": "-" if each.seed is None else str(each.seed),
        "steps": f"{each.step:,}",
        "return": _number(each.mean_return, 2),
        "eval": _number(each.eval_return, 2),
        "SPS": _number(each.sps, 0),
        "state": f"[{style}]{each.state}[/]" if style else each.state,
        "age": age(each.age_s),
    }


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def age(seconds: float) -> str:
    """In the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
