"""CPU time and memory of this process and of everything it started, from /proc. Linux only; elsewhere: nothing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096


def _stat(path: Path) -> list[str]:
    """Fields of a stat file from the third on (state, ppid, ...); empty when the process is gone."""
    with contextlib.suppress(OSError):
        return path.read_text().rpartition(")")[2].split()
    return []


def _cpu_s(path: Path) -> float:
    fields = _stat(path)
    return (int(fields[11]) + int(fields[12])) * _TICK_S if fields else 0.0


def _parents() -> Iterator[tuple[int, int]]:
    """(pid, ppid) of every process."""
    if PROC.is_dir():
        for folder in PROC.iterdir():
            if folder.name.isdigit() and (fields := _stat(folder / "stat")):
                yield int(folder.name), int(fields[1])


def _role(pid: int, depth: int) -> str:
    with contextlib.suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes()
        if depth == 2 and b"nursery" in command:
            return "nursery"
    return "server" if depth == 1 else "lanes"


def family() -> dict[int, str]:
    """pid -> client, server, nursery or lanes: this process and its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    roles = {os.getpid(): "client"}
    level = [os.getpid()]
    for depth in range(1, 8):
        level = [child for parent in level for child in children.get(parent, ())]
        roles |= {pid: _role(pid, depth) for pid in level}
    return roles


def cpu_s(roles: Mapping[int, str]) -> Counter[str]:
    """CPU seconds so far by role; the threads of this process that have names of ours also apart."""
    spent: Counter[str] = Counter()
    for pid, role in roles.items():
        spent[role] += _cpu_s(PROC / str(pid) / "stat")  # type: ignore[assignment]  # Counter adds floats as well
    for thread in threading.enumerate():
        if thread.name == "MainThread" or thread.name.startswith("asyncrl-"):
            name = "client loop thread" if thread.name == "MainThread" else "client inference thread"
            spent[name] += _cpu_s(PROC / "self" / "task" / str(thread.native_id) / "stat")  # type: ignore[assignment]
    return spent


def rss_bytes(roles: Mapping[int, str]) -> Counter[str]:
    """Resident bytes by role."""
    held: Counter[str] = Counter()
    for pid, role in roles.items():
        with contextlib.suppress(OSError, IndexError):
            held[role] += int((PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    return held


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of (x, y) points; 0 for fewer than three."""
    if len(points) < 3:
        return 0.0
    x, y = np.array(points, np.float64).T
    x = x - x.mean()
    spread = float(x @ x)
    return float(x @ (y - y.mean())) / spread if spread else 0.0


def open_descriptors() -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in (PROC / "self" / "fd").iterdir())
    return 0
