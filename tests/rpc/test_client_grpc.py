"""What the client relies on gRPC for, pinned: stalled peers, reconnects, TLS with tokens, large frames."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from asyncrl.client.addresses import parse
from asyncrl.client.connecting import connect
from asyncrl.client.credentials import Access
from asyncrl.client.grpc_transport import GrpcConnector, channel_options
from asyncrl.errors import ConnectionFailed, ConnectionLost
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from envserver.credentials import new_certificates, new_token
from tests.rig.processes import EnvServerProcess
from tests.rig.proxy import FaultProxy

pytestmark = pytest.mark.rpc


async def test_a_frozen_server_is_noticed_by_the_channel(tmp_path: Path) -> None:
    """SIGSTOP: keepalive alone would take 60 s. Our options, with every 5 s made 0.5 s, take about one.

    `grpc.http2.ping_timeout_ms` is an internal name of gRPC: this test says whether a new version still knows it.
    """
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server:
        connector = GrpcConnector(server.address)
        connector._options = [(key, 500 if value == 5000 else value) for key, value in connector._options]
        assert [value for _, value in connector._options].count(500) == 3
        transport = await connector.open_stream()
        await transport.send_frame(to_frames(Message(pb.OPEN, 1, b""), connector.with_crc)[0])
        assert await transport.recv_frame() is not None  # refused, and the server waits for our end
        held = await connector.open_stream()
        reading = asyncio.get_running_loop().time()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(20):
                    await held.recv_frame()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert asyncio.get_running_loop().time() - reading < 20
        await held.close()
        await transport.close()
        await connector.close()


async def fails(connector: GrpcConnector) -> bool:
    try:
        await connector.describe(pb.DescribeRequest())
    except ConnectionFailed:
        return True
    return False


async def test_a_server_that_comes_back_is_reached_soon(tmp_path: Path) -> None:
    """After an outage with many failed dials the channel itself waits two seconds at most, not its default of 120."""
    options = dict(channel_options(parse("127.0.0.1:1")))
    assert options["grpc.max_reconnect_backoff_ms"] == 2000
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server:
        address = server.address
        connector = GrpcConnector(address)
        await connector.describe(pb.DescribeRequest())
    for _ in range(5):
        with pytest.raises(ConnectionFailed, match="nothing listens"):
            await connector.describe(pb.DescribeRequest())
        await asyncio.sleep(0.2)
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"], listen=address, name="again"):
        async with asyncio.timeout(10):
            while await fails(connector):
                await asyncio.sleep(0.1)
    await connector.close()


async def test_a_server_far_away_is_reached(tmp_path: Path) -> None:
    """Half a second passes before a connection's first bytes are answered: gRPC must not give up by then."""
    server = EnvServerProcess(tmp_path, envs=["CartPole-v1"])
    async with server, FaultProxy(("127.0.0.1", int(server.address.rpartition(":")[2]))) as proxy:
        proxy.to_server.delay_s = proxy.to_client.delay_s = 0.25
        connector = GrpcConnector(proxy.address)
        assert (await connector.describe(pb.DescribeRequest())).envs
        await connector.close()


async def test_a_fleet_over_mutual_tls_and_a_token(tmp_path: Path) -> None:
    """Everything on: rows come; without the token, or without our certificate, the stage is named."""
    new_certificates(str(tmp_path), ["127.0.0.1", "localhost"], "trainer")
    token = str(tmp_path / "token")
    new_token(token, "learner")
    files = {name: str(tmp_path / name) for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")}
    options = ["--token-file", token, "--tls-cert", files["server.pem"], "--tls-key", files["server.key"]]
    options += ["--tls-client-ca", files["ca.pem"]]
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=options, listen="0.0.0.0:0") as server:
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        pair = {"tls_cert": files["client.pem"], "tls_key": files["client.key"]}
        access = Access(token_file=token, tls_ca=files["ca.pem"], **pair)
        async with connect(address, access=access, env="CartPole-v1", num_envs=2, lanes=1) as fleet:
            for _ in range(20):
                arrival = await fleet.recv()
                assert arrival.rows is not None
                arrival.lane.step([np.zeros(2, np.int64)])
        for wrong, stage in (
            (Access(tls_ca=files["ca.pem"], **pair), "token"),
            (Access(token_file=token, tls_ca=files["ca.pem"]), "tls"),
            (Access(token_file=token), "tls"),
        ):
            with pytest.raises(ConnectionFailed) as caught:
                async with connect(address, access=wrong, env="CartPole-v1"):
                    pass
            assert caught.value.stage == stage


async def test_large_first_observations_come_in_parts(tmp_path: Path) -> None:
    """The first rows of 128 slots with 256 KiB each are far over a frame's limit, and arrive whole."""
    async with (
        EnvServerProcess(tmp_path, envs=["big=tests.rpc.big_env:make"], num_envs=128) as server,
        connect(server.address, env="big", num_envs=128, lanes=1, seed=3) as fleet,
    ):
        for count in range(3):
            rows = (await fleet.recv()).rows
            assert rows is not None
            (obs,) = rows.obs
            assert obs.shape == (128, 256 * 1024)
            assert [int(row[0]) for row in obs] == [count] * 128
            assert bool((obs == obs[:, :1]).all())
            fleet.lanes[0].step([np.zeros(128, np.int64)])
        assert fleet.stats.bytes_in > 2 * obs.nbytes
