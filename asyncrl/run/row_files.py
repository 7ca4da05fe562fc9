"""`monitor.csv` as Stable-Baselines3 reads it, and `metrics.jsonl`.

A resumed run's files end at the checkpoint's step and go on from there, so that they are those of a run that was never
interrupted (test_resumed_files_are_those_of_one_run).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from asyncrl.run.append_file import AppendFile, keep_lines
from asyncrl.run.recorders import wall_s

# One column more than Monitor writes, at the end, as its `info_keywords` would be: when, in steps of the run.
COLUMNS: Final = "r,l,t,step"


class Episode(NamedTuple):
    """A row of monitor.csv."""

    ret: float
    length: int
    seconds: float
    step: int


class MonitorFile:
    """Episodes, a line each. `resumed`: those that were there already."""

    def __init__(self, path: Path, env_id: str, report: Callable[[str], None], resume_step: int | None = None) -> None:
        self.resumed: list[Episode] = []
        if resume_step is not None and path.exists():
            self.resumed = _truncate_monitor(path, resume_step)
        header = json.dumps({"t_start": wall_s(), "env_id": env_id})
        self._file = AppendFile(path, report)
        if path.stat().st_size == 0:
            self._file.write(f"#{header}\n{COLUMNS}\n".encode())

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self._file.write(f"{round(ret, 6)},{length},{round(seconds, 6)},{step}\n".encode())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Not in this file."""

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        """Not in this file."""

    def text(self, step: int, tag: str, text: str) -> None:
        """Not in this file."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Not in this file."""

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class MetricsFile:
    """Scalars, counts by value, events and texts: one JSON object a line, with `step` and `time`.

    Numbers that are none are strings.
    """

    def __init__(self, path: Path, report: Callable[[str], None], resume_step: int | None = None) -> None:
        if resume_step is not None and path.exists():
            keep_lines(path, lambda line: json.loads(line)["step"] <= resume_step)
        self._file = AppendFile(path, report)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._row(step, {name: _jsonable(float(value)) for name, value in values.items()})

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        self._row(step, {name: {str(value): count for value, count in sorted(counts.items())}})

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        """In monitor.csv."""

    def text(self, step: int, tag: str, text: str) -> None:
        self._row(step, {"tag": tag, "text": text})

    def event(self, step: int, kind: str, text: str) -> None:
        self._row(step, {"event": kind, "text": text})

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _row(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, "time": round(wall_s(), 3), **values}).encode() + b"\n")


def read_monitor(path: Path) -> list[Episode]:
    """The episodes in a monitor.csv; lines that are none (the last one of a living run) are left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [episode for line in file if (episode := _episode(line)) is not None]
    except FileNotFoundError:
        return []


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl, numbers as numbers again."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield {
                        name: _NUMBERS.get(value, value) if isinstance(value, str) else value
                        for name, value in row.items()
                    }
    except FileNotFoundError:
        return


_NUMBERS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _jsonable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _episode(line: str) -> Episode | None:
    cells = line.rstrip("\n").split(",")
    try:
        return Episode(float(cells[0]), int(cells[1]), float(cells[2]), int(cells[3]))
    except (ValueError, LookupError):
        return None


def _truncate_monitor(path: Path, step: int) -> list[Episode]:
    def keep(line: str) -> bool:
        episode = _episode(line)
        return line.startswith("#") or line == f"{COLUMNS}\n" or (episode is not None and episode.step <= step)

    return [episode for line in keep_lines(path, keep) if (episode := _episode(line)) is not None]
