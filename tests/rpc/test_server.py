"""The env server process over real gRPC: opaque errors, health, signals, a port that is taken."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import asyncrl
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from envserver import server as server_module
from envserver.core import EnvServer
from tests.rig.processes import ROOT, Child, EnvServerProcess, child_environment, until
from tests.unit.envserver.watching import gone
from tests.unit.envserver.wild_env import EXIT, RAISE, closing_option, pids_that

pytestmark = pytest.mark.rpc

LOCAL = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)


class _BrokenCore:
    """A core whose every call fails with something private in its text."""

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        raise ValueError("secret of describe")

    async def lane(self, stream: server_module.GrpcStream) -> None:
        await stream.read()
        raise RuntimeError("secret of lane")


@pytest.fixture
async def broken() -> AsyncIterator[Any]:
    """A channel to a server around a broken core."""
    server = grpc.aio.server()
    core: EnvServer = _BrokenCore()  # type: ignore[assignment]
    server.add_generic_rpc_handlers((server_module._handlers(core),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def test_internal_errors_are_opaque(broken: Any) -> None:
    """An exception of ours reaches the peer as INTERNAL with an id; neither its text nor its type does."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await broken.unary_unary("/asyncrl.v1.EnvService/Describe")(b"")
    call = broken.stream_stream("/asyncrl.v1.EnvService/Lane")()
    await call.write(b"x")
    await call.done_writing()
    for code, text in ((failure.value.code(), failure.value.details()), (await call.code(), await call.details())):
        assert code is grpc.StatusCode.INTERNAL
        assert text is not None and text.startswith("INTERNAL: id ")
        assert "secret" not in text and "Error" not in text


async def test_a_malformed_describe_is_the_callers_fault(broken: Any) -> None:
    """Bytes that are no DescribeRequest get INVALID_ARGUMENT with a typed code."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await broken.unary_unary("/asyncrl.v1.EnvService/Describe")(b"\xff\xff")
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "BAD_FRAME" in (failure.value.details() or "")


async def test_health_turns_before_the_drain(tmp_path: Path) -> None:
    """After SIGTERM health is NOT_SERVING while a lane that is still held is served to its end."""
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=["--drain-s", "3"]) as server:
        async with grpc.aio.secure_channel(server.address, LOCAL) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="asyncrl.v1.EnvService")
            assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            open_lane: Any = channel.stream_stream
            call = open_lane("/asyncrl.v1.EnvService/Lane")()
            opening = pb.Open(run_id="r", env="CartPole-v1", fleet_slots=[0], incarnations=[0])
            opening.protocol.major = 1
            (frame,) = to_frames(Message(pb.OPEN, 1, opening.SerializeToString()), with_crc=True)
            await call.write(frame)
            assert pb.Frame.FromString(await call.read()).kind == pb.OPENED
            server.signal(signal.SIGTERM)
            event = pb.Frame.FromString(await call.read())
            assert event.kind == pb.EVENT and pb.Event.FromString(event.body).kind == pb.DRAINING
            assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert pb.Frame.FromString(await call.read()).kind == pb.BYE
            await call.done_writing()
            while isinstance(await call.read(), bytes):
                pass
        assert await server.wait() == 0


async def test_sigterm_drains_and_exits_0(tmp_path: Path) -> None:
    """A client in the middle of its work loses nothing that it was answered; the server ends with status 0."""
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server:
        async with asyncrl.connect(server.address, env="CartPole-v1", num_envs=4, lanes=2, seed=1) as fleet:
            for _ in range(2):
                arrival = await fleet.recv()
                assert arrival.rows is not None
            server.signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while fleet.lanes_up:
                    await asyncio.sleep(0.05)
        assert await server.wait() == 0


async def test_sigterm_is_obeyed_while_warming_up(tmp_path: Path) -> None:
    """A simulator that takes very long to build keeps a server from being ready, not from ending; nothing is left."""
    option = "eternal=tests.rpc.dawdling_env:make_for_ever"
    command = [sys.executable, "-m", "envserver", "--warm", "--env", option, "--listen", "127.0.0.1:0"]
    building = tmp_path / "building"
    server = Child(command, tmp_path, "server", child_environment(BUILDING=str(building)))
    server.start()
    try:
        await until(building.exists, within_s=30.0)
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0
    finally:
        server.send_signal(signal.SIGKILL)
    assert server.stdout() == ""
    await until(lambda: not Path(f"/proc/{building.read_text()}").exists())


async def test_a_spec_is_for_learners(tmp_path: Path) -> None:
    """An observer sees what there is, but has no lane process built; a learner gets the spec."""
    tokens, learner, observer = tmp_path / "tokens", "learner-token-123456", "observer-token-123456"
    tokens.write_text(f"learner {learner}\nobserver {observer}\n")
    tokens.chmod(0o600)
    server = EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=["--token-file", str(tokens)])

    async def described(token: str, env: str) -> pb.DescribeReply:
        metadata = (("authorization", f"Bearer {token}"),)
        async with grpc.aio.secure_channel(server.address, LOCAL) as channel:
            unary: Any = channel.unary_unary
            request = pb.DescribeRequest(env=env).SerializeToString()
            reply = await unary("/asyncrl.v1.EnvService/Describe")(request, metadata=metadata)
            return pb.DescribeReply.FromString(reply)

    async with server:
        assert [offer.alias for offer in (await described(observer, "")).envs] == ["CartPole-v1"]
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await described(observer, "CartPole-v1")
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not server.descendants()
        assert (await described(learner, "CartPole-v1")).envs[0].spec_hash


async def test_sigterm_closes_the_environments(tmp_path: Path) -> None:
    """Those of a client's lane, and of a lane that was prepared for the next one."""
    options = ["--warm", "--lanes", "2", "--num-envs", "2"]
    async with (
        EnvServerProcess(tmp_path, envs=[closing_option(tmp_path)], options=options) as server,
        asyncrl.connect(server.address, env="closing", num_envs=1, lanes=1) as fleet,
    ):
        assert (await fleet.recv()).rows is not None
        assert await server.terminate() == 0
    assert len(pids_that(tmp_path, "made")) >= 2
    assert pids_that(tmp_path, "closed") == pids_that(tmp_path, "made")


async def test_a_second_signal_waits_for_nothing(tmp_path: Path) -> None:
    """Neither for environments that take their time to close: the server ends at once, and they with it."""
    async with EnvServerProcess(tmp_path, envs=[closing_option(tmp_path, close_s=600)]) as server:
        async with asyncrl.connect(server.address, env="closing", num_envs=1, lanes=1) as fleet:
            assert (await fleet.recv()).rows is not None
            server.signal(signal.SIGTERM)
            await until(lambda: bool(pids_that(tmp_path, "closing")))
            server.signal(signal.SIGTERM)
            assert await server.wait() == 1
        await gone(*pids_that(tmp_path, "made"))


async def test_the_log_has_the_story_of_every_fault(tmp_path: Path) -> None:
    """The traceback of a slot's, and what a lane printed before it ended itself; each under the lane's id."""
    env = "wild=tests.unit.envserver.wild_env:make"
    async with EnvServerProcess(tmp_path, envs=[env]) as server:
        async with asyncrl.connect(server.address, env="wild", num_envs=1, lanes=1) as fleet:
            for action in (RAISE, EXIT):
                arrival = await fleet.recv()
                assert arrival.rows is not None
                arrival.lane.step([np.array([action])])
            while arrival.lost is None:
                arrival = await fleet.recv()
        await until(lambda: "its last output" in server.log())
        log = server.log().splitlines()
    of_lane = re.compile(r" ([A-Z]) envserver\.lane: lane [0-9a-f]{16} \(wild\), pid \d+: (.*)")
    said = [found.groups() for line in log if (found := of_lane.search(line))]
    assert said.count(("W", "ValueError: the bottom of the action space")) == 1
    assert said.count(("C", "SystemExit: 3")) == 1
    assert any("(wild): lost, " in line for line in log), log  # its cause, unless the nursery was slow to tell
    assert not any(mark in server.log() for mark in "\x1d\x1e\x1f")


async def test_a_second_server_on_the_port_fails_loudly(tmp_path: Path) -> None:
    """Status 2 and a text that names the address; the first server goes on."""
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server:
        command = [sys.executable, "-m", "envserver", "--env", "CartPole-v1", "--listen", server.address]
        second = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, env=child_environment(), capture_output=True, timeout=30, check=False
        )
        assert second.returncode == 2
        assert server.address in second.stderr.decode()
        async with asyncrl.connect(server.address, env="CartPole-v1", num_envs=1) as fleet:
            assert (await fleet.recv()).rows is not None


async def test_an_embedded_server_ends_with_its_parent(tmp_path: Path) -> None:
    """When the pipe on its standard input closes, for whatever reason, the server ends with status 0."""
    options = {"env": ["CartPole-v1"], "listen": ["127.0.0.1:0"]}
    command = [sys.executable, "-m", "envserver.embedded", json.dumps(options)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert "ready" in json.loads(await process.stdout.readline())
    process.stdin.close()
    async with asyncio.timeout(20):
        assert await process.wait() == 0
