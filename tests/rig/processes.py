"""Real env servers as child processes: start, find out where they listen, send signals, collect logs, leave nothing.

    async with EnvServerProcess(tmp_path, num_envs=8) as server:
        fleet = connect(server.address, env="ledger", num_envs=8)

Every spawned process has the pickle tripwire on its path. What was journalled is in `server.journal`; touching a file
in `server.flags` fires a fault of `LedgerEnv`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.rig.census import become_subreaper, descendants, reap_orphans
from tests.rig.ledger_env import FLAGS_VARIABLE, JOURNAL_VARIABLE
from tests.rig.tripwire import sitecustomize

ROOT: Final = Path(__file__).resolve().parents[2]
TRIPWIRE: Final = ROOT / "tests" / "rig" / "tripwire"
LEDGER_ENTRY: Final = "tests.rig.ledger_env:make"
READY_S: Final = 30.0
_POLL_S: Final = 0.01


def ledger_option(alias: str = "ledger", **kwargs: Any) -> str:
    """The `--env` option that serves LedgerEnv under an alias."""
    return f"{alias}={LEDGER_ENTRY}{json.dumps(kwargs) if kwargs else ''}"


def child_environment(**extra: str) -> dict[str, str]:
    """Our environment with the tripwire and the project in front of the path."""
    path = [str(TRIPWIRE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    log = os.environ.get(sitecustomize.LOG_VARIABLE, "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), sitecustomize.LOG_VARIABLE: log, **extra}


@dataclass
class Child:
    """One child process with its output in files."""

    command: Sequence[str]
    directory: Path
    name: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        become_subreaper()
        with self._open("out") as out, self._open("err") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(self.environment),
                cwd=ROOT,
                start_new_session=True,
            )

    def _open(self, kind: str) -> Any:
        return (self.directory / f"{self.name}.{kind}").open("ab")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stdout(self) -> str:
        return (self.directory / f"{self.name}.out").read_text(errors="replace")

    def stderr(self) -> str:
        return (self.directory / f"{self.name}.err").read_text(errors="replace")

    async def wait(self, within_s: float = 15.0) -> int:
        """The exit status. Cancellation leaves the process running."""
        assert self.process is not None
        ends = time.monotonic() + within_s
        while (status := self.process.poll()) is None:
            if time.monotonic() > ends:
                raise AssertionError(f"{self.name} is still there after {within_s:g} s\n{self.stderr()[-4000:]}")
            await asyncio.sleep(_POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.process.pid, number)


@dataclass
class EnvServerProcess:
    """`python -m envserver` on an ephemeral port. `envs` are `--env` options; `options` go to the command line."""

    directory: Path
    num_envs: int = 8
    envs: Sequence[str] = ()
    options: Sequence[str] = ()
    listen: str = "127.0.0.1:0"
    name: str = "server"
    prefix: Sequence[str] = ()  # what runs the command: `ip netns exec NAME`
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    boot_id: str = ""
    pid: int = 0  # of the server itself, also behind a prefix
    _child: Child | None = None

    @property
    def journal(self) -> str:
        return str(self.directory / "journal")

    @property
    def flags(self) -> Path:
        path = self.directory / f"{self.name}.flags"
        path.mkdir(exist_ok=True)
        return path

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._kill_all()
            raise
        return self

    async def __aexit__(self, kind: object, error: object, _trace: object) -> None:
        """SIGTERM, then SIGKILL for whatever is left. Cancellation kills at once."""
        if error is not None:
            print(f"---- log of {self.name}\n{self.log()[-6000:]}", file=sys.stderr)
        try:
            if self._child is not None and self._child.process is not None and self._child.process.poll() is None:
                self.signal(signal.SIGCONT)
                self._child.send_signal(signal.SIGTERM)
                with contextlib.suppress(AssertionError):
                    await self._child.wait(5.0)
        finally:
            self._kill_all()

    async def start(self) -> None:
        """Start it and wait until it listens. After the first time it takes the port that it had."""
        flags = {JOURNAL_VARIABLE: self.journal, FLAGS_VARIABLE: str(self.flags)}
        command = [*self.prefix, sys.executable, "-m", "envserver", "--num-envs", str(self.num_envs)]
        for option in self.envs or [ledger_option()]:
            command += ["--env", option]
        command += ["--listen", self.address or self.listen, *self.options]
        self._child = Child(command, self.directory, self.name, child_environment(**flags, **self.environment))
        seen = len(self._child.stdout()) if (self.directory / f"{self.name}.out").exists() else 0
        self._child.start()
        line = await self._ready_line(self._child, seen)
        self.address, self.boot_id, self.pid = line["ready"], line["boot_id"], line["pid"]

    async def _ready_line(self, child: Child, seen: int) -> dict[str, Any]:
        ends = time.monotonic() + READY_S
        assert child.process is not None
        while True:
            for text in child.stdout()[seen:].splitlines(keepends=True):
                if text.startswith('{"ready"') and text.endswith("\n"):
                    line: dict[str, Any] = json.loads(text)
                    return line
            if child.process.poll() is not None or time.monotonic() > ends:
                raise AssertionError(f"{self.name} does not start\n{child.stderr()[-4000:]}")
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------------ faults

    def signal(self, number: int) -> None:
        """To the server process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL to the server process alone: its lanes must end by themselves."""
        self.signal(signal.SIGKILL)
        assert self._child is not None
        await self._child.wait()

    async def wait(self, within_s: float = 15.0) -> int:
        """The exit status of a server that ends by itself. Cancellation leaves it running."""
        assert self._child is not None
        return await self._child.wait(within_s)

    async def terminate(self, within_s: float = 15.0) -> int:
        """SIGTERM; its exit status."""
        self.signal(signal.SIGTERM)
        assert self._child is not None
        return await self._child.wait(within_s)

    def pause(self, with_lanes: bool = False) -> None:
        """SIGSTOP; to every process below it too, as when the machine freezes."""
        for pid in [self.pid, *(self.descendants() if with_lanes else ())]:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in [self.pid, *self.descendants()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # ------------------------------------------------------------------ looking

    def descendants(self) -> dict[int, str]:
        """pid -> name of the nursery, the lanes, and what their environments started."""
        return descendants(self.pid)

    def lane_pids(self) -> list[int]:
        """Processes that serve a lane, oldest first: children of the nursery, or of the server without one."""
        nursery = [pid for pid in descendants(self.pid) if _cmdline(pid).find("envserver.nursery") >= 0]
        top = [pid for pid in nursery if _parent(pid) == self.pid]
        parents = set(top or [self.pid])
        return sorted(pid for pid in self.descendants() if _parent(pid) in parents and pid not in top)

    def log(self) -> str:
        return "" if self._child is None else self._child.stderr()

    def _kill_all(self) -> None:
        if self._child is None or self._child.process is None:
            return
        victims = set(descendants(self._child.pid)) | {self._child.pid}
        if self._child.process.poll() is None:
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._child.process.wait(10)
        reap_orphans()


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def until(condition: Any, within_s: float = 10.0, what: str = "") -> float:
    """Poll until `condition()` is true; how long it took. Cancellation just stops looking."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what or condition}")
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - began
