"""Tokens: the file, the roles, the log, and the interceptor on a real gRPC server."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from asyncrl.errors import ConfigError
from envserver import auth
from envserver.auth import ROLES, ROLES_OF, TokenAuth, TokenFile, fingerprint, read_tokens, role_of
from envserver.config import ServerConfig
from envserver.registry import Registry, parse_env_option

LEARNER = "learner-token-0123456789"
OBSERVER = "observer-token-987654321"
DESCRIBE = "/asyncrl.v1.EnvService/Describe"
LANE = "/asyncrl.v1.EnvService/Lane"
CHECK = "/grpc.health.v1.Health/Check"


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def write(path: Path, text: str, mode: int = 0o600) -> str:
    """A token file, written beside and renamed, as a careful operator does it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
    return str(path)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    return write(tmp_path / "tokens", f"# ours\nlearner {LEARNER}  # the trainer\n\n observer\t{OBSERVER}\n")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------------------------------------------------- the file


def test_a_token_file_has_roles_and_comments(tokens: str) -> None:
    """Each line gives a role to the digest of a token; the token itself is not kept."""
    assert read_tokens(tokens) == {digest(LEARNER): "learner", digest(OBSERVER): "observer"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no token in it"),
        ("# only words\n\n", "no token in it"),
        (f"{LEARNER}\n", "line 1: a line is ROLE TOKEN"),
        (f"learner {LEARNER} extra\n", "line 1: a line is ROLE TOKEN"),
        (f"\nadmin {LEARNER}\n", "line 2: the first word is no role; there are learner and observer"),
        (f"{LEARNER} learner\n", "the first word is no role"),
        ("learner short\n", "a token of 5 characters"),
        (f"learner {LEARNER}\nobserver {LEARNER}\n", "line 2: the token of another role"),
        ("learner tokén-0123456789abcdef\n", "is no token file"),
    ],
)
def test_an_unusable_token_file_stops_the_start(tmp_path: Path, text: str, says: str) -> None:
    """A file that gives no clear answer raises, and the text has no token in it."""
    path = write(tmp_path / "tokens", text)
    with pytest.raises(ConfigError) as caught:
        TokenFile(path)
    assert says in str(caught.value)
    assert LEARNER not in str(caught.value)


def test_a_missing_token_file_stops_the_start(tmp_path: Path) -> None:
    """A file that was named and is not there is never taken for no authentication."""
    settings = ServerConfig(
        registry=Registry([parse_env_option("CartPole-v1")]), num_envs=1, token_file=str(tmp_path / "none")
    )
    with pytest.raises(ConfigError, match="envserver token new"):
        auth.interceptors(settings)


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_token_file_that_others_can_read_stops_the_start(tmp_path: Path, mode: int) -> None:
    """Any permission of group or others is too much."""
    path = write(tmp_path / "tokens", f"learner {LEARNER}\n", mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(path)


def test_no_token_file_means_no_interceptor(tokens: str) -> None:
    """Without the option there is nothing to ask for; with it there is, at the quota's pace of logging."""
    registry = Registry([parse_env_option("CartPole-v1")])
    assert auth.interceptors(ServerConfig(registry=registry, num_envs=1)) == []
    (found,) = auth.interceptors(ServerConfig(registry=registry, num_envs=1, token_file=tokens))
    assert isinstance(found, TokenAuth)


def test_a_rotation_takes_effect_with_the_next_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Adding, then removing a token changes the roles as soon as the file has changed."""
    caplog.set_level(logging.INFO)
    path = write(tmp_path / "tokens", f"learner {LEARNER}\n")
    found = TokenFile(path)
    new = "learner-token-of-tomorrow"
    write(Path(path), f"learner {LEARNER}\nlearner {new}\n")
    assert set(found.roles()) == {digest(LEARNER), digest(new)}
    write(Path(path), f"learner {new}\n")
    assert set(found.roles()) == {digest(new)}
    assert "tokens read again" in caplog.text
    assert new not in caplog.text


@pytest.mark.parametrize("broken", ["", "garbage", None])
def test_a_broken_rotation_keeps_the_old_tokens(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that has become unusable changes nothing and is logged once."""
    path = tmp_path / "tokens"
    found = TokenFile(write(path, f"learner {LEARNER}\n"))
    if broken is None:
        path.unlink()
    else:
        write(path, broken)
    for _ in range(20):
        assert set(found.roles()) == {digest(LEARNER)}
    assert len([record for record in caplog.records if "stay as they were" in record.message]) == 1


# ------------------------------------------------------------------------------------------------------ the decision


def test_every_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A match does not end the comparing, and every comparison is the constant-time one."""
    seen: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        seen.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    roles = {digest(str(number)): f"role {number}" for number in range(5)}
    assert role_of(digest("0"), roles) == "role 0"
    assert seen == list(roles)
    assert role_of(digest("x"), roles) is None
    assert len(seen) == 10


async def decide(guard: TokenAuth, method: str, metadata: Any) -> str:
    """`through` or the name of the deny handler, for metadata as gRPC gives it."""
    passed = grpc.stream_stream_rpc_method_handler(lane)

    async def proceed(_: grpc.HandlerCallDetails) -> Any:
        return passed

    details: Any = SimpleNamespace(method=method, invocation_metadata=metadata)
    handler = await guard.intercept_service(proceed, details)
    if handler is passed:
        return "through"
    return {id(auth._DENY_UNKNOWN): "unknown", id(auth._DENY_ROLE): "role"}[id(handler)]


METHODS = [*ROLES_OF, "/asyncrl.v1.EnvService/Other", "/grpc.reflection.v1.ServerReflection/Info", ""]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("token", "role"), [(LEARNER, "learner"), (OBSERVER, "observer"), ("x" * 30, None)])
async def test_unlisted_methods_are_for_nobody(tokens: str, method: str, token: str, role: str | None) -> None:
    """Method by role: what the table lists passes, everything else is denied, unknown methods too."""
    expected = {
        "learner": {"Describe", "Lane", "Check", "List", "Watch"},
        "observer": {"Describe", "Check", "List", "Watch"},
        None: set(),
    }
    may = method in ROLES_OF and method.rpartition("/")[2] in expected[role]
    found = await decide(TokenAuth(TokenFile(tokens)), method, (("authorization", f"Bearer {token}"),))
    assert found == ("through" if may else "unknown" if role is None else "role")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("Authorization-x", f"Bearer {LEARNER}"),),
        (("authorization", ""),),
        (("authorization", "Bearer "),),
        (("authorization", f"bearer {LEARNER}"),),
        (("authorization", f"Basic {LEARNER}"),),
        (("authorization", f"Bearer  {LEARNER}"),),
        (("authorization", f"Bearer {LEARNER} "),),
        (("authorization", f"Bearer {LEARNER.upper()}"),),
        (("authorization", f"Bearer {LEARNER}"), ("authorization", f"Bearer {LEARNER}")),
        (("authorization", "Bearer \udcff\U0001f600"),),
        (("authorization", b"Bearer \xff"),),
    ],
)
async def test_odd_credentials_are_denied(tokens: str, metadata: Any) -> None:
    """Nothing but one well-formed header with a known token passes."""
    assert await decide(TokenAuth(TokenFile(tokens)), DESCRIBE, metadata) == "unknown"


def test_the_roles_are_those_of_the_table() -> None:
    """A role that may call nothing could be written into a token file and would surprise its holder."""
    assert ROLES == ("learner", "observer")


async def test_tokens_never_reach_the_log(tokens: str, caplog: pytest.LogCaptureFixture) -> None:
    """A denied call is logged with a fingerprint, whatever was shown, and with a method that cannot fill the log."""
    caplog.set_level(logging.DEBUG)
    secret = "guessed-token-0123456789"
    guard = TokenAuth(TokenFile(tokens), log_interval_s=0.0)
    await decide(guard, LANE, (("authorization", f"Bearer {secret}"),))
    await decide(guard, LANE, (("authorization", f"Bearer {OBSERVER}"),))
    await decide(guard, "/evil\n" + "x" * 10_000, (("authorization", f"Bearer {LEARNER}"),))
    await decide(guard, LANE, ())
    assert not [token for token in (secret, OBSERVER, LEARNER) if token in caplog.text]
    assert fingerprint(digest(secret)) in caplog.text
    assert "token none" in caplog.text
    assert "role observer" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 300
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_flood_is_one_line_a_second(tokens: str, caplog: pytest.LogCaptureFixture) -> None:
    """Denied calls within a second share a line, and the next line says how many there were."""
    clock = Clock()
    guard = TokenAuth(TokenFile(tokens), clock=clock)
    for now in (0.0, 0.1, 0.9, 0.99, 1.0, 1.5):
        clock.now = now
        await decide(guard, LANE, ())
    assert [record.getMessage().count("3 more") for record in caplog.records] == [0, 1]
    assert guard.denied == 6


# ------------------------------------------------------------------------------------------------------ on real gRPC


async def describe(_: bytes, __: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return b"described"


async def lane(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.write(b"a frame")


@contextlib.asynccontextmanager
async def served(tokens: str) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[TokenAuth(TokenFile(tokens))])
    handlers = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Lane": grpc.stream_stream_rpc_method_handler(lane),
        "Other": grpc.unary_unary_rpc_method_handler(describe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("asyncrl.v1.EnvService", handlers),))
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def outcome(channel: grpc.aio.Channel, method: str, token: str | None) -> str:
    """`ok`, or the status that the call ended with. A stream is only read, never written to."""
    metadata: Mapping[str, str] = {} if token is None else {"authorization": f"Bearer {token}"}
    sent: Any = tuple(metadata.items())
    try:
        if method == LANE:
            stream: Any = channel.stream_stream(method, None, None)
            frame = await stream(metadata=sent, timeout=10).read()
            return "ok" if frame == b"a frame" else "end"
        await channel.unary_unary(method, None, None)(b"x", metadata=sent, timeout=10)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "ok"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (LEARNER, ["ok", "ok", "PERMISSION_DENIED", "PERMISSION_DENIED"]),
        (OBSERVER, ["ok", "PERMISSION_DENIED", "PERMISSION_DENIED", "PERMISSION_DENIED"]),
        ("wrong-token-0123456789", ["UNAUTHENTICATED"] * 4),
        (None, ["UNAUTHENTICATED"] * 4),
    ],
)
async def test_unary_and_silent_calls_are_denied_at_once(tokens: str, token: str | None, expected: list[str]) -> None:
    """Over gRPC: unary calls, streams on which the client sends nothing, and methods that do not exist."""
    methods = (DESCRIBE, LANE, "/asyncrl.v1.EnvService/Other", "/no.Such/Method")
    async with served(tokens) as channel:
        assert [await outcome(channel, method, token) for method in methods] == expected


async def test_a_large_request_without_a_token_is_not_read(tokens: str) -> None:
    """A request over the size limit is answered by the interceptor: had it been read, the status would differ."""
    async with served(tokens) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(DESCRIBE, None, None)(bytes(8 << 20), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
