"""Results as rows, and the rows as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

SPEED_UNIT = "transitions/s"


@dataclass(frozen=True)
class Row:
    """`ratio_to[other]` is this value divided by that of the row called `other`, as the median over repetitions."""

    workload: str
    name: str
    value: float | None  # None: absent or failed, see `note`
    unit: str
    ratio_to: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


class Results(Protocol):
    """One workload, while it is measured and afterwards."""

    def measure(self, repeats: int) -> None: ...

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class Report:
    """Where the rows go, and what they are measured against."""

    subject: str
    unit: str
    json: Path | None
    plot: Path | None
    strict: bool
    width: int  # of a table that goes to a file

    def console(self) -> Console:
        return Console(width=None if sys.stdout.isatty() else self.width)

    def make(self, results: Iterable[Results], repeats: int, console: Console) -> int:
        """Measures one after the other; the exit status."""
        about = machine()
        rows: list[Row] = []
        for each in results:
            each.measure(repeats)
            found = list(each.rows())
            print_table(found, console)
            rows += found
            # After each workload: whoever interrupts keeps what there is.
            if self.json is not None:
                write_json(rows, about, self.json)
        if self.plot is not None:
            write_plot(rows, self.subject, self.plot, self.unit)
        return int(self.strict and any(row.note in ("MISSED", "not measured") for row in rows))


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def take_peer_pythons(given: Sequence[str]) -> None:
    """Those of the command line are asked before those of the environment."""
    if given:
        os.environ["ASYNCRL_PEER_PYTHON"] = os.pathsep.join((*given, os.environ.get("ASYNCRL_PEER_PYTHON", "")))


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_table(rows: Sequence[Row], console: Console) -> None:
    """One table per workload."""
    for workload in dict.fromkeys(row.workload for row in rows):
        table = Table(title=workload, title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("value", justify="right")
        table.add_column("unit")
        table.add_column("ratio to")
        table.add_column("note")
        for row in rows:
            if row.workload == workload:
                ratios = "  ".join(f"{ratio:.2f} × {name}" for name, ratio in row.ratio_to.items())
                table.add_row(row.name, number(row.value), row.unit, ratios, row.note)
        console.print(table)


def write_json(rows: Sequence[Row], machine: Mapping[str, Any], path: Path) -> None:
    document = {"machine": dict(machine), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_plot(rows: Sequence[Row], subject: str, path: Path, unit: str = SPEED_UNIT) -> None:
    """One panel per workload: every speed, the rows in this unit, relative to ours on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    speeds = [row for row in rows if row.unit == unit and row.value]
    names = list(dict.fromkeys(row.workload for row in speeds))
    panels = [[row for row in speeds if row.workload == name] for name in names]
    heights = [len(panel) + 1.4 for panel in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(9, 0.42 * sum(heights) + 0.6), squeeze=False, height_ratios=heights
    )
    for axis, name, panel in zip(axes[:, 0], names, panels, strict=True):
        _draw_panel(axis, name, panel, subject)
    axes[-1, 0].set_xlabel(f"{unit} relative to {subject} = 1 (logarithmic)")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_panel(axis: Any, name: str, panel: Sequence[Row], subject: str) -> None:
    ours = next((row.value for row in panel if row.name == subject), None) or 1.0
    panel = sorted(panel, key=lambda row: row.value or 0.0)
    ratios = [(row.value or 0.0) / ours for row in panel]
    colors = ["tab:orange" if row.name == subject else "tab:blue" for row in panel]
    axis.barh([row.name for row in panel], ratios, color=colors, height=0.65)
    for position, (row, ratio) in enumerate(zip(panel, ratios, strict=True)):
        label = f" {number(row.value)}" + ("" if row.name == subject else f"  ({ratio:.2g} ×)")
        backing = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
        axis.text(ratio, position, label, va="center", fontsize=8, bbox=backing, zorder=3)
    axis.axvline(1.0, color="tab:orange", linewidth=0.8, zorder=2)
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 2, max(ratios) * 6)
    axis.set_title(name, loc="left", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    # Less than two decades: the places between the powers of ten need names as well.
    narrow = max(ratios) / min(ratios) < 20
    axis.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if narrow and f"{value:e}"[0] in "235" else "")
    axis.tick_params(which="minor", labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
