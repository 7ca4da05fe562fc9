"""The bare-bytes loop: the same lanes and slots, the same forward, and nothing else of asyncrl.

Client ⇄ gRPC bidi stream ⇄ relay process ⇄ socketpair ⇄ lane process, as asyncrl has it, but the messages are raw
arrays of a size that both ends know: no protobuf, no envelope, no CRC, no acks, no bounds, no errors but a crash; and
the forward runs on the event loop itself. Its threads are where the kernel puts them, or with `core` and `alone` where
ours are.

`python -m benchmarks.ceilings.inline_loop '{"env": "CartPole-v1", "lanes": 2, "slots": 256, "policy": "mlp", ...}'`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.client.scheduling import Scheduling, scheduled
from benchmarks.ceilings.bare_grpc import METHOD, bare_channel, bare_server, run_loop
from benchmarks.measuring import MeasuredRun, RunSettings, Window
from benchmarks.native_env import TransitionCounter, make_native
from envserver.running import schedule_for_throughput

START = b"\0"


class Layout:
    """Where the arrays of one reply are: obs, then rewards f8 [B], terminated b1 [B], truncated b1 [B]."""

    def __init__(self, obs_dtype: Any, obs_shape: tuple[int, ...], slots: int) -> None:
        self.obs_dtype = np.dtype(obs_dtype)
        self.shape = (slots, *obs_shape)
        self.obs_bytes = int(np.prod(self.shape)) * self.obs_dtype.itemsize
        self.flags_at = self.obs_bytes + 8 * slots
        self.reply_bytes = self.flags_at + 2 * slots

    def obs(self, reply: bytes) -> Any:
        return np.frombuffer(reply, self.obs_dtype, self.obs_bytes // self.obs_dtype.itemsize).reshape(self.shape)

    def ended(self, reply: bytes) -> Any:
        terminated, truncated = np.frombuffer(reply, np.bool_, offset=self.flags_at).reshape(2, -1)
        return terminated | truncated


# ------------------------------------------------------------------------------------------------------- lane process


def run_lane(sock: socket.socket, env: str, slots: int) -> None:
    """Blocking: action bytes in, reply bytes out, until the relay goes away."""
    envs = make_native(env, slots)
    space = envs.single_action_space
    layout = Layout(envs.single_observation_space.dtype, envs.single_observation_space.shape, slots)
    action_bytes = slots * space.dtype.itemsize
    obs, _ = envs.reset(seed=0)
    rewards, terminated, truncated = np.zeros(slots), np.zeros(slots, np.bool_), np.zeros(slots, np.bool_)
    assert sock.recv(1) == START
    while True:
        parts = (obs, rewards.astype(np.float64, copy=False), terminated, truncated)
        reply = b"".join(part.tobytes() for part in parts)
        assert len(reply) == layout.reply_bytes
        sock.sendall(reply)
        data = sock.recv(action_bytes, socket.MSG_WAITALL)
        if len(data) < action_bytes:
            os._exit(0)
        obs, rewards, terminated, truncated, _ = envs.step(np.frombuffer(data, space.dtype))


# ------------------------------------------------------------------------------------------------------ relay process


def fork_lanes(env: str, lanes: int, slots: int) -> list[socket.socket]:
    """One process per lane, forked before this process imports grpc or starts a thread."""
    sockets: list[socket.socket] = []
    for _ in range(lanes):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            for sock in (ours, *sockets):
                sock.close()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                run_lane(theirs, env, slots)
            os._exit(0)
        theirs.close()
        sockets.append(ours)
    return sockets


class LanePipe:
    """The relay's end of one socketpair: whole replies of a known size, read when the loop says so."""

    def __init__(self, sock: socket.socket, reply_bytes: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._size = reply_bytes
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._missing = reply_bytes
        self._reply: asyncio.Future[bytes] = self._loop.create_future()
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        part = self._sock.recv(self._missing)
        if not part:
            self._loop.remove_reader(self._sock.fileno())
            if not self._reply.done():
                self._reply.set_exception(EOFError("the lane process is gone"))
            return
        self._missing -= len(part)
        self._parts.append(part)
        if self._missing == 0:
            whole = part if len(self._parts) == 1 else b"".join(self._parts)
            self._parts, self._missing = [], self._size
            if not self._reply.done():  # cancelled at the end of a run
                self._reply.set_result(whole)

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        """Sends one action (small: it always fits the socket's buffer); the reply comes through the future."""
        self._reply = self._loop.create_future()
        sent = self._sock.send(data)
        assert sent == len(data)
        return self._reply


async def relay(address: str, sockets: list[socket.socket], reply_bytes: int) -> None:
    free = [LanePipe(sock, reply_bytes) for sock in sockets]

    async def lane(_request: AsyncIterator[bytes], context: Any) -> None:
        pipe = free.pop()
        while isinstance(data := await context.read(), bytes):
            await context.write(await pipe.ask(data))

    await bare_server(address, lane)


def relay_main(address: str, env: str, lanes: int, slots: int, reply_bytes: int) -> None:
    sockets = fork_lanes(env, lanes, slots)
    run_loop(relay(address, sockets, reply_bytes))


# ------------------------------------------------------------------------------------------------------------- client


async def drive(lane: int, call: Any, layout: Layout, window: Window, policy: Any) -> None:
    """One lane: read, forward, write, all on the loop."""
    slots = layout.shape[0]
    counter = TransitionCounter(slots)
    first = np.zeros(slots, np.bool_)
    await call.write(START)
    while not window.over:
        reply = await call.read()
        counter.add(layout.ended(reply))
        window.count(lane, counter.transitions, slots)
        counter.transitions = 0
        action = policy([layout.obs(reply)], None, first, ())
        await call.write(action.tobytes())
    call.cancel()


async def client(address: str, settings: RunSettings, layout: Layout, policy: Any, wish: Scheduling) -> MeasuredRun:
    with scheduled(wish, beside=wish.alone):
        opened = bare_channel(address)  # which starts gRPC's threads
    with scheduled(wish):
        return await turns(opened, settings, layout, policy)


async def turns(opened: Any, settings: RunSettings, layout: Layout, policy: Any) -> MeasuredRun:
    async with opened as channel:
        async with asyncio.timeout(30):
            await channel.channel_ready()
        window = Window(settings)
        method = channel.stream_stream(METHOD)
        async with asyncio.TaskGroup() as group:
            group.create_task(window.run())
            for lane in range(settings.lanes):
                group.create_task(drive(lane, method(), layout, window, policy))
    return window.result()


def make_policy(settings: RunSettings, obs_space: Any, space: Any) -> Any:
    """A function of (obs, mask, first, carry) that gives the action leaf [N]."""
    if settings.policy == "random":
        rng = np.random.default_rng(0)
        pool = [rng.integers(0, space.n, settings.slots).astype(space.dtype) for _ in range(64)]
        return lambda obs, mask, first, carry: pool[int(rng.integers(64))]
    from benchmarks.acting import network_policy, spec_of

    policy = network_policy(settings.policy, spec_of(obs_space, space), bf16=settings.bf16)
    return lambda obs, mask, first, carry: policy.act(obs, mask, first, carry, None).action[0]


def main(settings: RunSettings) -> dict[str, Any]:
    probe = make_native(settings.env, 1)
    space, obs_space = probe.single_action_space, probe.single_observation_space
    probe.close()
    layout = Layout(obs_space.dtype, obs_space.shape, settings.slots)
    policy = make_policy(settings, obs_space, space)
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'relay'}" if settings.unix else "127.0.0.1:50991"
        arguments = [address, settings.env, settings.lanes, settings.slots, layout.reply_bytes]
        wish = Scheduling(settings.batch, settings.core, settings.alone)
        with scheduled(wish, beside=True):
            process = subprocess.Popen([sys.executable, "-m", __spec__.name, "relay", *map(str, arguments)])
        try:
            return run_loop(client(address, settings, layout, policy, wish)).to_json()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        schedule_for_throughput()
        relay_main(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
    else:
        print(json.dumps(main(RunSettings.from_json(sys.argv[1]))))
