"""An environment whose action chooses what goes wrong, and a lane of it driven over the launcher's interface."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import ResetRequest, encode_reset, encode_step
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows, decode
from envserver.lane_handle import LaneHandle
from envserver.registry import Registry, parse_env_option

FINE, SEGFAULT, EXIT, HANG, HANG_IN_C, PRINT, GRANDCHILD, ESCAPED, KILL_SELF, RAISE, PLAYER, DAEMON, STRANGER = range(
    13
)
PRINTED_MB = 200


def hold_the_gil() -> None:
    """For a minute, in C code that signals do not end early."""
    libc = ctypes.PyDLL(None)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        libc.sleep(60)


def fork_escaped() -> int:
    """A grandchild in a session of its own that holds all of the lane's descriptors."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    return pid


def start_daemon() -> int:
    """In a session of its own, and its parent is no more."""
    command = ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


class WildEnv(gymnasium.Env[Any, Any]):
    """The observation is the pid of a process that the step started, or 0."""

    observation_space = gymnasium.spaces.Box(0, 2**30, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(13)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.int64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self._obey(int(action))], np.int64), 0.0, False, False, {}

    def _obey(self, action: int) -> int:
        if action == SEGFAULT:
            print("about to read address 0")
            ctypes.string_at(0)
        elif action == EXIT:
            sys.exit(3)
        elif action == HANG:
            while True:
                time.sleep(0.01)
        elif action == HANG_IN_C:
            hold_the_gil()
        elif action == PRINT:
            line = "x" * 1023
            for _ in range(PRINTED_MB * 1024):
                print(line)
            print("the last line")
        elif action == GRANDCHILD:
            return subprocess.Popen(["sleep", "600"]).pid
        elif action == ESCAPED:
            return fork_escaped()
        elif action == PLAYER:
            return subprocess.Popen(["sleep", "600"], start_new_session=True).pid
        elif action == DAEMON:
            return start_daemon()
        elif action == STRANGER:
            return subprocess.Popen(["sleep", "600"], start_new_session=True, env={}).pid
        elif action == RAISE:
            raise ValueError("the bottom of the action space")
        elif action == KILL_SELF:
            os.kill(os.getpid(), 9)
        return 0


class OddEnv(WildEnv):
    """Has metadata that nobody can make sense of, and no lane expects."""

    metadata = {"render_modes": [], "render_fps": "fast"}  # noqa: RUF012  # as Gymnasium has it


class ClosingEnv(WildEnv):
    """Takes a while to close; its files say which processes have made one, are closing it, and have closed it."""

    def __init__(self, folder: str, close_s: float) -> None:
        self._folder, self._close_s = Path(folder), close_s
        self._say("made")

    def close(self) -> None:
        self._say("closing")
        time.sleep(self._close_s)
        self._say("closed")

    def _say(self, what: str) -> None:
        (self._folder / f"{os.getpid()}.{what}").touch()


def make() -> gymnasium.Env[Any, Any]:
    return WildEnv()


def make_closing(folder: str, close_s: float = 0.3) -> gymnasium.Env[Any, Any]:
    return ClosingEnv(folder, close_s)


def closing_option(folder: Path, **kwargs: float) -> str:
    """The `--env` option that serves it as `closing`."""
    return f"closing={__name__}:make_closing{json.dumps({'folder': str(folder), **kwargs})}"


def pids_that(folder: Path, what: str) -> set[int]:
    """Processes that have `made` a ClosingEnv, are `closing` it, have `closed` it."""
    return {int(path.stem) for path in folder.glob(f"*.{what}")}


async def until(holds: Callable[[], bool]) -> None:
    """Poll what no event announces: files of /proc, bytes of a log. TimeoutError after ten seconds."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


def registry() -> Registry:
    options = (f"wild={__name__}:make", "CartPole-v1", f"odd={__name__}:OddEnv")
    return Registry(map(parse_env_option, options))


class LaneDriver:
    """A lane behind a handle, opened and stepped as a relay would."""

    def __init__(self, handle: LaneHandle) -> None:
        self.handle = handle
        self._inbox: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self._seq = 0
        self._spec: LaneSpec | None = None
        self._slots = 0
        handle.on_message = lambda *message: self._inbox.put_nowait(message)

    async def open(self, env: str, slots: int = 1) -> StepRows:
        request = pb.Open(env=env, fleet_slots=range(slots), incarnations=[0] * slots, seeds=range(slots))
        kind, body = await self.call(pb.OPEN, request.SerializeToString())
        assert kind == pb.OPENED, pb.Error.FromString(body)
        self._spec, self._slots = LaneSpec.from_proto(pb.Opened.FromString(body).spec), slots
        kind, body = await self.call(pb.RESET, encode_reset(ResetRequest(None, None, None)))
        return self._rows(kind, body)

    async def step(self, *action: int) -> StepRows:
        self.send_step(*action)
        return await self.stepped()

    async def stepped(self) -> StepRows:
        """The reply to a step that was sent."""
        kind, _, body = await self._receive()
        return self._rows(kind, body)

    def send_step(self, *action: int) -> None:
        assert self._spec is not None
        body, _ = encode_step([np.array(action, np.int64)], self._spec.action.leaves, self._slots)
        self._send(pb.STEP, body)

    async def call(self, kind: int, body: bytes) -> tuple[int, bytes]:
        self._send(kind, body)
        kind, seq, body = await self._receive()
        assert seq == self._seq
        return kind, body

    async def cause(self) -> str:
        """Of the process's end, which has to come soon."""
        async with asyncio.timeout(20):
            return await asyncio.shield(self.handle.exited)

    def _send(self, kind: int, body: bytes) -> None:
        self._seq += 1
        self.handle.send(kind, self._seq, body)

    async def _receive(self) -> tuple[int, int, bytes]:
        while True:
            async with asyncio.timeout(30):
                message = await self._inbox.get()
            if message[0] != pb.EVENT:
                return message

    def _rows(self, kind: int, body: bytes) -> StepRows:
        assert kind == pb.STEP_RESULT, pb.Error.FromString(body)
        assert self._spec is not None
        return decode(body, self._spec, self._slots)
