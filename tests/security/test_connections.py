"""Who gets through to a server that others can reach: tokens, certificates and plaintext, over real sockets.

The server is bound by the code that binds the shipped one; what it serves is an echo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from envserver import auth
from envserver.config import ServerConfig
from envserver.credentials import write_secret
from envserver.listening import add_ports, parse
from envserver.registry import Registry, parse_env_option
from tests.security.certificates import HOST, Certificates, Pair

pytestmark = pytest.mark.rpc

TOKEN = "a-learners-token-0123456789"
NEW_TOKEN = "the-next-learners-token-987"
DESCRIBE = "/asyncrl.v1.EnvService/Describe"
LANE = "/asyncrl.v1.EnvService/Lane"


@dataclass(frozen=True)
class Client:
    """What a client trusts and shows. `ca` None is plaintext."""

    ca: Path | None
    token: str | None = TOKEN
    pair: Pair | None = None

    def channel(self, port: int) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        if self.ca is None:
            return grpc.aio.insecure_channel(f"{HOST}:{port}", options)
        key, chain = self.pair.client_chain if self.pair else (None, None)
        creds = grpc.ssl_channel_credentials(self.ca.read_bytes(), key, chain)
        return grpc.aio.secure_channel(f"{HOST}:{port}", creds, options)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    write_secret(path, f"learner {TOKEN}\n".encode())
    return path


@contextlib.asynccontextmanager
async def serving(config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of an echo server that treats the loopback address as one that others can reach, if it has TLS."""
    if config.has_tls:
        monkeypatch.setattr("envserver.listening.parse", lambda text: replace(parse(text), is_local=False))

    async def describe(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request

    async def lane(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"x")

    server = grpc.aio.server(interceptors=auth.interceptors(config), options=[("grpc.so_reuseport", 0)])
    handlers: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Lane": grpc.stream_stream_rpc_method_handler(lane),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("asyncrl.v1.EnvService", handlers),))
    (bound,) = add_ports(server, config)
    await server.start()
    try:
        yield bound.port
    finally:
        await server.stop(0)


def config(token_file: Path, pair: Pair | None = None, client_ca: Path | None = None) -> ServerConfig:
    return ServerConfig(
        registry=Registry([parse_env_option("CartPole-v1")]),
        num_envs=1,
        listen=(f"{HOST}:0",),
        token_file=str(token_file),
        tls_cert=str(pair.cert) if pair else None,
        tls_key=str(pair.key) if pair else None,
        tls_client_ca=str(client_ca) if client_ca else None,
    )


async def outcome(client: Client, port: int) -> str:
    """How a unary call and a stream end: one word if both end alike."""
    metadata: Any = (("authorization", f"Bearer {client.token}"),) if client.token else ()
    async with client.channel(port) as channel:
        unary = channel.unary_unary(DESCRIBE, None, None)(b"x", metadata=metadata, timeout=20)
        open_stream: Any = channel.stream_stream(LANE, None, None)
        stream = open_stream(metadata=metadata, timeout=20)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stream.read()
        names = {(await unary.code()).name, (await stream.code()).name}
    return "/".join(sorted(names))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [(TOKEN, "OK"), (None, "UNAUTHENTICATED"), (NEW_TOKEN, "UNAUTHENTICATED"), (TOKEN[:-1], "UNAUTHENTICATED")],
)
@pytest.mark.parametrize("over", ["tls", "plaintext on loopback"])
async def test_a_token_is_asked_for(
    certificates: Certificates,
    token_file: Path,
    shown: str | None,
    expected: str,
    over: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No token, a wrong one and one cut short are denied over TLS, and on loopback too where a token file is set."""
    tls = over == "tls"
    client = Client(certificates.ca if tls else None, shown)
    async with serving(config(token_file, certificates.server if tls else None), monkeypatch) as port:
        assert await outcome(client, port) == expected


async def test_tokens_rotate_without_a_restart(
    certificates: Certificates, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new pass while both are in the file; then the old one is out."""
    clients = [Client(certificates.ca, TOKEN), Client(certificates.ca, NEW_TOKEN)]
    files = [
        (f"learner {TOKEN}\nlearner {NEW_TOKEN}\n", ["OK", "OK"]),
        (f"learner {NEW_TOKEN}\n", ["UNAUTHENTICATED", "OK"]),
    ]
    async with serving(config(token_file, certificates.server), monkeypatch) as port:
        assert [await outcome(client, port) for client in clients] == ["OK", "UNAUTHENTICATED"]
        for number, (text, expected) in enumerate(files):
            fresh = token_file.with_suffix(f".{number}")
            write_secret(fresh, text.encode())
            fresh.replace(token_file)
            assert [await outcome(client, port) for client in clients] == expected


@pytest.mark.parametrize(
    ("server", "trusted", "expected"),
    [
        ("server", "ca", "OK"),
        ("server", "other_ca", "UNAVAILABLE"),
        ("expired_server", "ca", "UNAVAILABLE"),
        ("wrong_host_server", "ca", "UNAVAILABLE"),
        ("other_server", "ca", "UNAVAILABLE"),
    ],
)
async def test_a_server_that_cannot_be_trusted_gets_no_token(
    certificates: Certificates,
    token_file: Path,
    server: str,
    trusted: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An expired certificate, one for another host and one of another CA end in the handshake, before any header."""
    client = Client(getattr(certificates, trusted))
    async with serving(config(token_file, getattr(certificates, server)), monkeypatch) as port:
        assert await outcome(client, port) == expected


@pytest.mark.parametrize(
    ("shown", "token", "expected"),
    [
        ("client", TOKEN, "OK"),
        ("client", NEW_TOKEN, "UNAUTHENTICATED"),
        ("client", None, "UNAUTHENTICATED"),
        (None, TOKEN, "UNAVAILABLE"),
        ("expired_client", TOKEN, "UNAVAILABLE"),
        ("other_client", TOKEN, "UNAVAILABLE"),
        ("server", TOKEN, "UNAVAILABLE"),
    ],
)
async def test_a_client_ca_asks_for_a_certificate_and_a_token(
    certificates: Certificates,
    token_file: Path,
    shown: str | None,
    token: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are needed: none, an expired, a foreign and a server's certificate fail, and so does a good one alone."""
    pair = getattr(certificates, shown) if shown else None
    settings = config(token_file, certificates.server, certificates.ca)
    async with serving(settings, monkeypatch) as port:
        assert await outcome(Client(certificates.ca, token, pair), port) == expected


@pytest.mark.parametrize(("server_has_tls", "client_has_tls"), [(True, False), (False, True)])
async def test_plaintext_and_tls_do_not_meet(
    certificates: Certificates,
    token_file: Path,
    server_has_tls: bool,
    client_has_tls: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plaintext to a TLS port and TLS to a plaintext port both fail to connect, and the server lives on."""
    settings = config(token_file, certificates.server if server_has_tls else None)
    wrong = Client(certificates.ca if client_has_tls else None)
    right = Client(certificates.ca if server_has_tls else None)
    async with serving(settings, monkeypatch) as port:
        assert await outcome(wrong, port) == "UNAVAILABLE"
        assert await outcome(right, port) == "OK"


def oldest_handshake(port: int, ca: Path, version: ssl.TLSVersion) -> str | None:
    """The version that was agreed on with a client that speaks only this one; None if the server hung up."""
    context = ssl.create_default_context(cafile=str(ca))
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((HOST, port), timeout=10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=HOST) as wrapped:
                return wrapped.version()
        except OSError:
            return None


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused(
    certificates: Certificates, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS 1.1 gets no handshake; 1.3 does."""
    async with serving(config(token_file, certificates.server), monkeypatch) as port:
        found = [
            await asyncio.to_thread(oldest_handshake, port, certificates.ca, version)
            for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_3)
        ]
    assert found == [None, "TLSv1.3"]


GARBAGE = (
    b"",
    b"\0" * 64,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\xff\xff",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


async def test_garbage_is_closed_and_does_no_harm(
    certificates: Certificates, token_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A port scan leaves the server well and the log without a line for every connection."""
    async with serving(config(token_file, certificates.server), monkeypatch) as port:
        for number in range(50):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(GARBAGE[number % len(GARBAGE)])
            if writer.can_write_eof():
                writer.write_eof()
            with contextlib.suppress(ConnectionError):
                while await reader.read(4096):
                    pass
            writer.close()
        assert await outcome(Client(certificates.ca), port) == "OK"
    assert len(caplog.records) <= 2


async def test_secrets_never_reach_the_log(
    certificates: Certificates, token_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With everything logged: neither a good token, nor a guessed one, nor a key is in the log or in a status."""
    caplog.set_level(logging.DEBUG)
    guess = "a-guess-of-a-token-55555555"
    async with serving(config(token_file, certificates.server), monkeypatch) as port:
        for token in (TOKEN, guess, None):
            await outcome(Client(certificates.ca, token), port)
        channel = Client(certificates.ca).channel(port)
        call = channel.unary_unary(DESCRIBE, None, None)(
            b"x", metadata=(("authorization", f"Bearer {guess}"),), timeout=20
        )
        details = await call.details()
        await channel.close(None)
    key_line = certificates.server.key.read_text().splitlines()[1]
    for secret in (TOKEN, guess, key_line):
        assert secret not in caplog.text
        assert secret not in details
    assert "denied" in caplog.text
