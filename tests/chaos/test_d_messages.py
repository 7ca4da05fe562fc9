"""Rows D: frames that are too large, no frames, damaged, or well-formed lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.timing import LaneTimers
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from tests.chaos.driving import Driver, Scene, scene
from tests.chaos.mutating import SERVICE, edited, mutating
from tests.rig import ledger_rules as rules
from tests.rig.census import census
from tests.rig.processes import EnvServerProcess, ledger_option, until
from tests.rig.proxy import FaultProxy, Way

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]


@asynccontextmanager
async def raw_stream(address: str) -> AsyncIterator[Any]:
    """A Lane RPC without a client around it."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.secure_channel(address, grpc.local_channel_credentials(), options) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Lane")()  # type: ignore[call-arg]
        try:
            yield call
        finally:
            call.cancel()


async def ending(address: str, *frames: bytes) -> tuple[grpc.StatusCode, list[bytes]]:
    """What a server answers to these frames, until it ends the stream."""
    got: list[bytes] = []
    async with raw_stream(address) as call:
        try:
            for frame in frames:
                await call.write(frame)
            while isinstance(reply := await call.read(), bytes):
                got.append(reply)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass  # it had ended before everything was written
        return await call.code(), got


async def _still_well(it: Scene) -> None:
    await it.driver.all_lanes_move()
    assert not it.driver.losses
    await it.audited()
    assert "Traceback" not in it.server.log()


async def test_D1_a_message_over_the_limit_ends_its_stream_only(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED for whoever sent it; other lanes do not notice."""
    async with scene(tmp_path) as it:
        frame = to_frames(Message(pb.OPEN, 1, b"x"), with_crc=True)[0]
        code, got = await ending(it.server.address, frame + bytes(17 << 20))
        assert (code, got) == (grpc.StatusCode.RESOURCE_EXHAUSTED, [])
        # Below gRPC's limit, above what a lane may send before its spec is known.
        parts = to_frames(Message(pb.OPEN, 1, bytes(3 << 20)), with_crc=True)
        code, got = await ending(it.server.address, *parts[:5])  # the fifth is the one that is too much
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        await _still_well(it)


def garbage() -> dict[str, list[bytes]]:
    """Things that are not what a stream begins with, or not a frame at all."""
    rng = random.Random(1)
    opening = to_frames(Message(pb.OPEN, 1, pb.Open(env="ledger").SerializeToString()), with_crc=True)[0]
    # Two parts of one body: the server still listens when the second one comes.
    parts, bare = (to_frames(Message(pb.OPEN, 1, bytes(300_000)), with_crc) for with_crc in (True, False))
    return {
        "nothing": [b""],
        "random": [rng.randbytes(300)],
        "truncated": [opening[:-3]],
        "no crc after crc": [parts[0], bare[1]],
        "huge varint": [b"\x08" + b"\xff" * 11],
        "unknown kind": [pb.Frame(seq=1, body=b"").SerializeToString() + b"\x20\x99\x01"],
        "a step first": [to_frames(Message(pb.STEP, 1, b""), with_crc=True)[0]],
        "body of OPEN is no Open": [to_frames(Message(pb.OPEN, 1, b"\xff\xff"), with_crc=True)[0]],
        "nested": [b"\x32" * 10_000],
        "another lane index": [pb.Frame(seq=1, kind=pb.OPEN, lane=3).SerializeToString()],
    }


async def test_D2_what_is_no_frame_ends_its_stream_only(tmp_path: Path) -> None:
    """Every kind of garbage ends in a typed error or a failed RPC; the server and its lanes go on."""
    async with scene(tmp_path) as it:
        for name, frames in garbage().items():
            code, got = await ending(it.server.address, *frames)
            replies = [pb.Frame.FromString(frame).kind for frame in got]
            assert code != grpc.StatusCode.INTERNAL, name
            assert code != grpc.StatusCode.OK or replies[-1:] == [pb.ERROR], (name, code, replies)
        await _still_well(it)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_D3_damage_on_the_way_never_reaches_a_row(tmp_path: Path) -> None:
    """Thirty flipped bits on a plaintext connection, most of them inside rows: nothing damaged, doubled or mispaired.

    A bit of a frame of ours ends its stream, which is resumed. One of HTTP/2's own framing may swallow a message or
    silence the connection until gRPC's ping finds out, and that can cost the lane.
    """
    rng = random.Random(4)
    large = ledger_option(obs_bytes=16_384)
    server = EnvServerProcess(tmp_path, num_envs=4, envs=[large], options=["--quota", "lease_s=2"])
    timers = LaneTimers(ping_every_s=0.3, pong_within_s=1.0)
    async with census(), server, FaultProxy(("127.0.0.1", int(server.address.rpartition(":")[2]))) as proxy:
        wish: dict[str, Any] = {"num_envs": 4, "lanes": 2, "seed": 2, "resumable": True, "timers": timers}
        async with connect(proxy.address, env="ledger", **wish) as fleet, Driver(fleet, 2) as driver:
            await driver.transitions(200)
            for number in range(30):
                way = proxy.to_server if number % 10 == 9 else proxy.to_client
                way.flip_at = way.passed + rng.randrange(60_000 if way is proxy.to_client else 2000)
                await _one_more_flip(driver, way)
                await driver.transitions(50, 40)
            report = await driver.finish(server.journal)
            assert fleet.stats.faults["stream_resumed"] > 10
            assert report.lost_in_flight <= 8 * len(driver.losses)
            assert len(driver.losses) <= 10
            print(f"{report}; {dict(fleet.stats.faults)}, causes {dict(fleet.stats.causes)}")


async def _one_more_flip(driver: Driver, way: Way) -> None:
    before = way.flipped
    await driver.until(lambda: way.flipped > before, 40, "a flip")


Edit = Callable[[Message], list[Message]]


def _rows(edit: Callable[[pb.StepResult], None]) -> Edit:
    return lambda message: [edited(message, edit)]


def _shorter_obs(rows: pb.StepResult) -> None:
    del rows.changed[:]
    rows.obs[0] = rows.obs[0][:-1]


def _changes_of_another_leaf(rows: pb.StepResult) -> None:
    rows.changed.add(leaf=len(rows.obs))


def _one_obs_more(rows: pb.StepResult) -> None:
    rows.obs.append(rows.obs[0])


def _short_rewards(rows: pb.StepResult) -> None:
    rows.rewards = rows.rewards[8:]


def _illegal_flags(rows: pb.StepResult) -> None:
    rows.flags = bytes([64]) + rows.flags[1:]


def _finals_without_flags(rows: pb.StepResult) -> None:
    told = np.frombuffer(rows.final_rows, "<u4").tolist()
    rows.final_rows = np.array([1 if told == [0] else 0], "<u4").tobytes()  # the truth may be [0]


def _another_action(rows: pb.StepResult) -> None:
    rows.action_crc ^= 1


def _endless_rows(rows: pb.StepResult) -> None:
    rows.stat_rows = np.array([10**6], "<u4").tobytes()


LIES: dict[str, Edit] = {
    "an observation too short": _rows(_shorter_obs),
    "changes of a leaf that is not there": _rows(_changes_of_another_leaf),
    "a leaf too many": _rows(_one_obs_more),
    "rewards of fewer slots": _rows(_short_rewards),
    "flags that do not exist": _rows(_illegal_flags),
    "final rows without an end": _rows(_finals_without_flags),
    "rows of another action": _rows(_another_action),
    "rows that do not exist": _rows(_endless_rows),
    "a seq that skips one": lambda message: [message._replace(seq=message.seq + 1)],
    "a reply of another kind": lambda message: [message._replace(kind=pb.RENDERED)],
    "a reply to nothing": lambda message: [message, message._replace(seq=message.seq + 1)],
    "a body that is no message": lambda message: [message._replace(body=b"\xff\xff\xff")],
    "a request": lambda message: [message._replace(kind=pb.STEP)],
}


@pytest.mark.parametrize("lie", LIES)
async def test_D4_well_formed_lies_never_reach_a_row(lie: str, shared_server: EnvServerProcess) -> None:
    """One lying reply costs its lane; nothing of it is stored, and the replacement works."""
    # A lane of the test before, whose step nobody waited for, journals it yet.
    await until(lambda: not shared_server.lane_pids(), 10, "the end of older lanes")
    seen = len(rules.read_journal(shared_server.journal))
    async with (
        mutating(shared_server.address) as liar,
        connect(liar.address, env="ledger", num_envs=4, lanes=2, seed=8) as fleet,
        Driver(fleet) as driver,
    ):
        await driver.transitions(50)
        liar.change = _once(liar, LIES[lie])
        await driver.until(lambda: driver.losses, 10, "the lie is found out")
        await driver.all_lanes_move()
        await driver.settle()
        assert len(driver.losses) == 1
        assert driver.losses[0].cause in ("protocol", "bad_frame"), driver.losses[0]
        driver.ledger.check(rules.read_journal(shared_server.journal)[seen:]).raise_if_violated()


def _once(liar: Any, lie: Edit) -> Edit:
    """The lie for one STEP_RESULT of a transition, the truth for all others."""

    def change(message: Message) -> list[Message]:
        if message.kind != pb.STEP_RESULT or message.seq < 4:
            return [message]
        liar.change = lambda each: [each]
        return lie(message)

    return change
