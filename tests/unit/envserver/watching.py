"""What /proc says of lane processes."""

from __future__ import annotations

from pathlib import Path

from tests.unit.envserver.wild_env import until


def is_alive(pid: int) -> bool:
    """Zombies are dead: in a container nobody may reap orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))


def descriptors(pid: int) -> dict[int, str]:
    return {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def environment(pid: int) -> dict[str, str]:
    entries = filter(None, Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
