"""Each way to fail a dial names its stage and what to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from asyncrl.client.addresses import parse
from asyncrl.client.credentials import Access
from asyncrl.client.diagnosis import LISTEN_S, STAGE_S, diagnose
from asyncrl.client.grpc_transport import DESCRIBE_S, GrpcConnector
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConnectionFailed
from asyncrl.wire._generated import env_pb2 as pb
from envserver.credentials import new_certificates
from tests.unit.client.grpc_toys import GrpcToy, grpc_toy


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, server.pem, server.key for localhost; client.pem, client.key of the same CA; other/ of another one."""
    folder = tmp_path_factory.mktemp("pki")
    new_certificates(str(folder / "ours"), ["localhost"], "client")
    new_certificates(str(folder / "other"), ["localhost"])
    new_certificates(str(folder / "elsewhere"), ["worker.example"])
    return folder


@asynccontextmanager
async def tls_toy(pki: Path, of: str = "ours", mutual: bool = False) -> AsyncIterator[GrpcToy]:
    pair = ((pki / of / "server.key").read_bytes(), (pki / of / "server.pem").read_bytes())
    ca = (pki / "ours/ca.pem").read_bytes() if mutual else None
    credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=mutual)
    async with grpc_toy(listen="localhost:0", credentials=credentials) as toy:
        yield toy


@contextmanager
def listener(say: bytes | None = None) -> Iterator[int]:
    """A TCP port that accepts and says `say`, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        held: list[socket.socket] = []

        def accept() -> None:
            peer, _ = server.accept()
            held.append(peer)
            if say is not None:
                peer.sendall(say)

        loop = asyncio.get_running_loop()
        loop.add_reader(server, accept)
        yield server.getsockname()[1]
        loop.remove_reader(server)
        for peer in held:
            peer.close()


async def failure(address: str, access: Access | None = None) -> ConnectionFailed:
    """What describing `address` raises."""
    connector = GrpcConnector(address, access)
    try:
        with pytest.raises(ConnectionFailed) as caught:
            await connector.describe(pb.DescribeRequest())
    finally:
        await connector.close()
    return caught.value


def check(error: ConnectionFailed, stage: str, *texts: str) -> None:
    assert error.stage == stage
    for text in (f"{stage} FAILED", *texts):
        assert text in str(error)


async def test_an_unknown_name() -> None:
    """dns."""
    error = await failure("no-such-host.invalid:50051")
    check(error, "dns", "no-such-host.invalid", "IP address")


async def test_nothing_listens() -> None:
    """tcp: with the command that starts a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        check(await failure(f"127.0.0.1:{port}"), "tcp", "dns ok", f"nothing listens on port {port}", "envserver --env")


async def test_no_socket_at_that_path(tmp_path: Path) -> None:
    """tcp, for Unix sockets: missing, or left behind by a server that is gone."""
    check(await failure(f"unix:{tmp_path}/missing"), "tcp", "No such file")
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    check(await failure(f"unix:{path}"), "tcp", "nothing listens on that socket")


async def test_plaintext_to_a_tls_port(pki: Path) -> None:
    """tls: the port speaks it, we did not."""
    async with tls_toy(pki) as toy:
        port = toy.address.rpartition(":")[2]
        check(await failure(f"127.0.0.1:{port}"), "tls", "dns ok, tcp ok", "pass tls_ca=")


async def test_tls_to_a_plaintext_port(pki: Path) -> None:
    """tls: we spoke it, the port does not."""
    async with grpc_toy() as toy:
        error = await failure(toy.address, Access(tls_ca=str(pki / "ours/ca.pem")))
        check(error, "tls", "tcp ok", "without TLS")


async def test_a_certificate_of_another_ca(pki: Path) -> None:
    """tls: names the CA file that was passed."""
    async with tls_toy(pki) as toy:
        error = await failure(toy.address, Access(tls_ca=str(pki / "other/ca.pem")))
        check(error, "tls", "other/ca.pem", "the CA of this server")


async def test_a_certificate_for_another_name(pki: Path) -> None:
    """tls: the name is not in it."""
    async with tls_toy(pki, of="elsewhere") as toy:
        error = await failure(toy.address, Access(tls_ca=str(pki / "elsewhere/ca.pem")))
        check(error, "tls", "localhost", "for this name")


async def test_a_missing_client_certificate(pki: Path) -> None:
    """tls: TLS 1.3 servers say so only after the handshake. With the pair the dial succeeds."""
    ca = str(pki / "ours/ca.pem")
    async with tls_toy(pki, mutual=True) as toy:
        check(await failure(toy.address, Access(tls_ca=ca)), "tls", "tls_cert and tls_key")
        pair = Access(tls_ca=ca, tls_cert=str(pki / "ours/client.pem"), tls_key=str(pki / "ours/client.key"))
        connector = GrpcConnector(toy.address, pair)
        assert (await connector.describe(pb.DescribeRequest())).boot_id == "boot"
        await connector.close()


async def test_what_listens_is_no_grpc_server() -> None:
    """http2: it says something else."""
    with listener(b"SSH-2.0-OpenSSH_9.9\r\n") as port:
        check(await failure(f"127.0.0.1:{port}"), "http2", "no gRPC server", "SSH-2.0")


async def test_a_name_that_is_no_name() -> None:
    """dns: an empty label cannot even be asked for."""
    check(await failure("worker..example:50051"), "dns", "worker..example", "Check the name")


@pytest.mark.parametrize("key", ["no PEM at all", "encrypted"])
async def test_files_that_are_no_pem(pki: Path, tmp_path: Path, key: str) -> None:
    """tls: says which file cannot be used; nobody is asked for a password."""
    bad = tmp_path / "bad.pem"
    bad.write_text("this is no certificate\n")
    access = Access(tls_ca=str(bad))
    if key == "encrypted":
        ours = pki / "ours"
        plain = serialization.load_pem_private_key((ours / "client.key").read_bytes(), None)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        bad.write_bytes(plain.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret")))
        access = Access(tls_ca=str(ours / "ca.pem"), tls_cert=str(ours / "client.pem"), tls_key=str(bad))
    with listener() as port:
        error = await diagnose(parse(f"localhost:{port}"), access, "UNAVAILABLE", "")
    check(error, "tls", str(bad), "PEM files, the key without a password")


def test_a_diagnosis_has_its_time() -> None:
    """What is waited for a description leaves room for the RPC and for a stage that gets no answer."""
    assert LaneTimers().describe_s > DESCRIBE_S + STAGE_S + LISTEN_S


async def test_what_listens_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """http2: connected, but no word: a stalled server."""
    monkeypatch.setattr("asyncrl.client.grpc_transport.DESCRIBE_S", 0.3)
    monkeypatch.setattr("asyncrl.client.diagnosis.STAGE_S", 0.3)
    with listener() as port:
        check(await failure(f"127.0.0.1:{port}"), "http2", "dns ok, tcp ok", "stalled")
