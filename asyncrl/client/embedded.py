"""`EmbeddedServer`: an env server of our own, as a child process, for programs that name no servers.

Invariants: the child ends with its parent, however that ends: it holds the other side of its standard input
(test_the_child_ends_with_its_parent); a start that fails says at which stage, with the last words of the child
(test_a_failed_start_shows_the_last_words); a child that dies is started again where it was, and lanes return to it
(test_a_child_that_dies_is_started_again); that one may use the cores that the first one had, whatever its program has
asked for since (test_it_is_started_again_as_it_was).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from asyncrl.client.addresses import MAX_UNIX_PATH_BYTES
from asyncrl.client.backoff import Backoff
from asyncrl.client.child_process import ChildProcess
from asyncrl.client.scheduling import ThreadState
from asyncrl.errors import ConnectionFailed, LocalProtocolError

log = logging.getLogger("asyncrl.embedded")

START_S: Final = 60.0
KEPT_LINES: Final = 200


class EmbeddedServer:
    """Serves `num_envs` environments of `env` to this program, on a Unix socket (loopback TCP where there is none).

        async with EmbeddedServer(env="CartPole-v1", num_envs=8) as server:
            async with connect(server.address, env="CartPole-v1", num_envs=8) as fleet:
                ...

    `kwargs` go to the environment's constructor; `options` are further ones of `envserver`, with underscores, such as
    {"warm": True, "quota": ["lease_s=20"]}.
    """

    def __init__(
        self,
        env: str,
        num_envs: int,
        *,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        start_s: float = START_S,
    ) -> None:
        self.address = ""
        self.boot_id = ""
        self._env = env + (json.dumps(dict(kwargs)) if kwargs else "")
        self._num_envs = num_envs
        self._options = dict(options or {})
        self._start_s = start_s
        self._folder: str | None = None
        self._process: ChildProcess | None = None
        self._group: asyncio.TaskGroup | None = None  # of the keeper
        self._keeper: asyncio.Task[None] | None = None
        self._listen_at = ""
        self._scheduled: ThreadState | None = None
        self._log: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def pid(self) -> int:
        """0 while there is no child."""
        return 0 if self._process is None else self._process.pid

    @property
    def log_tail(self) -> str:
        """The last lines that the child and its lanes wrote."""
        return "\n".join(self._log)

    async def __aenter__(self) -> EmbeddedServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the child and wait until it listens; from then on it is started again should it die.

        Raises ConnectionFailed with the stage and the child's last words; then, and when cancelled, no child is left.
        """
        if self._listen_at:
            raise LocalProtocolError("this embedded server has been started")
        self._scheduled = ThreadState.here()
        self._listen_at = self._listen()
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._keeper = self._group.create_task(self._keep_alive())

    async def stop(self) -> None:
        """Close the child's standard input, which ends it, and wait. Idempotent."""
        group, self._group = self._group, None
        try:
            if group is not None:
                assert self._keeper is not None
                self._keeper.cancel()
                await group.__aexit__(None, None, None)
        finally:
            await self._end_child()
        self._listen_at = ""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _end_child(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _keep_alive(self) -> None:
        """Whoever has lanes here finds the same address again, and another boot_id. A server that does not come up
        any more is for its fleets to give up on."""
        backoff = Backoff(random.Random())
        while True:
            if self._process is not None:
                status = await self._process.wait()
                await self._end_child()
                log.warning("the embedded env server died (%s) and is started again%s", status, self._last_words())
            await asyncio.sleep(backoff.next_s())
            try:
                await self._launch()
            except ConnectionFailed as error:
                log.warning("%s", error)

    async def _launch(self) -> None:
        """A child that listens; none is left if it does not."""
        try:
            await self._spawn()
            async with asyncio.timeout(self._start_s):
                await self._read_ready()
        except TimeoutError:
            await self._end_child()
            raise self._failed("listen", f"it did not listen within {self._start_s:g} s") from None
        except ConnectionFailed:
            await self._end_child()
            raise
        if not self._listen_at.startswith("unix:"):
            self._listen_at = self.address  # the port that the system chose

    async def _spawn(self) -> None:
        options = {"env": [self._env], "num_envs": self._num_envs, "listen": [self._listen_at], **self._options}
        command = [sys.executable, "-m", "envserver.embedded", json.dumps(options)]
        try:
            self._process = await ChildProcess.start(command, self._log)
        except OSError as error:
            raise ConnectionFailed(f"the embedded env server could not be started: {error}", "spawn") from None
        if self._scheduled is not None:
            # It inherited what its program, or a fleet of it, has asked for since. It has no other threads yet.
            with contextlib.suppress(OSError):
                self._scheduled.apply(self._process.pid)

    async def _read_ready(self) -> None:
        """The one line of JSON that says where it listens."""
        assert self._process is not None
        line = await self._process.first_line()
        if not line:
            raise self._failed("start", f"it exited with status {await self._process.wait()}")
        try:
            ready = json.loads(line)
            self.address, self.boot_id = str(ready["ready"]), str(ready["boot_id"])
        except (ValueError, KeyError, TypeError):
            raise self._failed("start", f"it wrote {line[:200]!r} instead of where it listens") from None

    def _listen(self) -> str:
        if not hasattr(socket, "AF_UNIX") or sys.platform == "win32" or os.environ.get("ASYNCRL_UNIX_SOCKETS") == "0":
            return "127.0.0.1:0"
        self._folder = tempfile.mkdtemp(prefix="asyncrl-")  # mode 0700
        path = str(Path(self._folder) / "socket")
        if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            return "127.0.0.1:0"
        return f"unix:{path}"

    def _failed(self, stage: str, text: str) -> ConnectionFailed:
        return ConnectionFailed(f"the embedded env server failed at {stage}: {text}{self._last_words()}", stage)

    def _last_words(self) -> str:
        return f"\nits last words:\n{self.log_tail}" if self._log else ""
