"""Addresses: which are local, what the others need, and Unix sockets that are left alone or cleaned up."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from asyncrl.errors import ConfigError
from envserver import listening
from envserver.config import ServerConfig
from envserver.listening import Address, add_ports, check, parse, socket_guard, welcome
from envserver.registry import Registry, parse_env_option

needs_unix = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX") or os.environ.get("ASYNCRL_UNIX_SOCKETS") == "0", reason="no Unix sockets here"
)
ALL_FILES = {"token_file": "t", "tls_cert": "c", "tls_key": "k"}


def config(*listen: str, **changes: Any) -> ServerConfig:
    registry = Registry([parse_env_option("CartPole-v1"), parse_env_option("pole=CartPole-v1")])
    return ServerConfig(registry=registry, num_envs=4, listen=listen, **changes)


async def echo(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


def echo_server() -> grpc.aio.Server:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    return server


async def call(target: str) -> bytes:
    """What a client without credentials gets."""
    async with grpc.aio.insecure_channel(target) as channel:
        method = channel.unary_unary("/test.Echo/Echo", None, None)
        return bytes(await method(b"x", timeout=10))


@pytest.mark.parametrize(
    ("text", "host", "port", "is_local"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("[::1]:1", "::1", 1, True),
        ("localhost:7", "127.0.0.1", 7, True),
        ("0.0.0.0:50051", "0.0.0.0", 50051, False),
        ("[::]:50051", "::", 50051, False),
        ("10.1.2.3:65535", "10.1.2.3", 65535, False),
        ("[2001:db8::1]:2", "2001:db8::1", 2, False),
    ],
)
def test_only_loopback_and_unix_sockets_are_local(text: str, host: str, port: int, is_local: bool) -> None:
    """An address is local if every number behind it is loopback, and then gRPC gets the number."""
    assert parse(text) == Address(host=host, port=port, is_local=is_local)


def test_a_name_with_one_foreign_address_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means loopback and something else too is taken for one that everyone reaches."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, 1)) for number in ("127.0.0.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert parse("both:1") == Address(host="both", port=1)


@needs_unix
@pytest.mark.parametrize(
    ("text", "path", "target"),
    [
        ("unix:/run/x", "/run/x", "unix:/run/x"),
        ("unix:///run/x", "/run/x", "unix:/run/x"),
        ("unix:/run/a b%41", "/run/a b%41", "unix:/run/a%20b%2541"),
    ],
)
def test_unix_paths(text: str, path: str, target: str) -> None:
    """Both forms are read, and what gRPC would take for an escape is escaped."""
    assert parse(text) == Address(path=path, is_local=True)
    assert parse(text).target == target


@needs_unix
def test_a_relative_socket_stays_where_it_is_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is resolved once, at the start."""
    monkeypatch.chdir(tmp_path)
    assert parse("unix:here").path == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("50051", "no port"),
        ("localhost", "no port"),
        ("localhost:http", "no port"),
        ("localhost:²", "no port"),
        ("localhost:65536", "no port"),
        ("localhost:-1", "no port"),
        (":50051", "0.0.0.0 every interface"),
        ("*:50051", "0.0.0.0 every interface"),
        ("::1:50051", "[::1]:50051"),
        ("no-such-host.invalid:1", "has no address here"),
        ("unix:", "unix:/run/user"),
        ("unix:/tmp/", "unix:/run/user"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
    ],
)
@needs_unix
def test_what_is_no_address_is_explained(text: str, says: str) -> None:
    """Every malformed address raises a ConfigError that says how to write it."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value)


def test_without_unix_sockets_the_text_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, a unix: address names what to use."""
    monkeypatch.setenv("ASYNCRL_UNIX_SOCKETS", "0")
    with pytest.raises(ConfigError, match=r"say 127\.0\.0\.1:PORT"):
        parse("unix:/run/x")


@pytest.mark.parametrize("missing", [*ALL_FILES, ""])
def test_a_reachable_address_needs_token_and_tls(missing: str) -> None:
    """Without any one of the three files the start is refused, and the text has the options and the recipes."""
    files = {name: value for name, value in ALL_FILES.items() if name != missing}
    if missing in ("tls_cert", "tls_key"):  # a config has both or neither
        files = {"token_file": "t"}
    both = ("127.0.0.1:1", "0.0.0.0:50051")
    if not missing:
        assert [address.is_local for address in check(config(*both, **files))] == [True, False]
        return
    with pytest.raises(ConfigError) as caught:
        check(config(*both, **files))
    text = str(caught.value)
    recipe = "envserver token new" if missing == "token_file" else "envserver cert new --out"
    other = "envserver cert new --out" if missing == "token_file" else "envserver token new"
    assert f"--{missing.replace('_', '-')}" in text
    assert recipe in text
    assert other not in text
    assert "--listen 127.0.0.1:50051" in text
    assert "0.0.0.0:50051" in text


def test_a_local_address_needs_nothing() -> None:
    """Loopback alone is served without any file."""
    assert check(config("127.0.0.1:0", "[::1]:0"))[1].target == "[::1]:0"


async def test_a_plaintext_client_reaches_a_local_listener() -> None:
    """A client without credentials, as one in C++ has them, gets its answer over loopback TCP."""
    server = echo_server()
    (bound,) = add_ports(server, config("127.0.0.1:0"))
    assert bound.port > 0
    await server.start()
    try:
        assert await call(str(bound)) == b"x"
    finally:
        await server.stop(0)


def listening_places(port: int) -> list[str]:
    """Hexadecimal addresses in the kernel's tables that have the port."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line.split()[1] for table in tables if table.exists() for line in table.read_text().splitlines()]
    return [place.partition(":")[0] for place in lines if place.endswith(f":{port:04X}")]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net here")
async def test_a_local_listener_is_bound_to_loopback() -> None:
    """The kernel's own table of listening sockets has 127.0.0.1, as itself or mapped into IPv6, and nothing else."""
    server = echo_server()
    (bound,) = add_ports(server, config("127.0.0.1:0"))
    try:
        places = listening_places(bound.port)
    finally:
        await server.stop(0)
    assert places
    assert set(places) <= {"0100007F", "0000000000000000FFFF00000100007F"}


async def test_a_taken_port_says_so() -> None:
    """A second listener on a port is refused with the reason, instead of sharing it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="another program listens there"):
            add_ports(echo_server(), config(f"127.0.0.1:{port}"))


def test_the_reason_of_the_system_is_found() -> None:
    """An address that this machine does not have, and one that nothing is wrong with."""
    assert "gRPC refused" in listening._why_not(Address(host="127.0.0.1"))
    assert "could not make a socket in /run/x" in listening._why_not(Address(path="/run/x/s"))
    assert "assign" in listening._why_not(Address(host="203.0.113.1"))
    assert listening._why_not(Address(host="2001:db8::1")) != ""


@needs_unix
async def test_our_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    """The socket has mode 0600, the folder made for it 0700, and both channels' worth of clients get through."""
    path = tmp_path / "made %41" / "so ck"
    before = os.umask(0)
    try:
        server = echo_server()
        (bound,) = add_ports(server, config(f"unix:{path}"))
    finally:
        assert os.umask(before) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await server.start()
    try:
        assert await call(bound.target) == b"x"
    finally:
        await server.stop(0)


@needs_unix
def test_a_live_socket_is_left_alone(tmp_path: Path) -> None:
    """A socket on which somebody listens stops the start and goes on listening."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen()
        with pytest.raises(ConfigError, match="another env server listens"), socket_guard(path):
            pytest.fail("the guard let a bind happen")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


@needs_unix
def test_a_busy_socket_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket whose queue is full is in use, or at least not surely stale."""
    monkeypatch.setattr(listening, "_PROBE_S", 0.05)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as first:
        alive.bind(path)
        alive.listen(0)
        first.connect(path)
        with pytest.raises(ConfigError), socket_guard(path):
            pytest.fail("the guard let a bind happen")
    assert Path(path).exists()


@needs_unix
def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """The socket of a server that was killed is removed, and the next one can bind."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with socket.socket(socket.AF_UNIX) as fresh:
        with socket_guard(path):
            fresh.bind(path)
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


@needs_unix
def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    """What is no socket is never removed."""
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"), socket_guard(str(path)):
        pytest.fail("the guard let a bind happen")
    assert path.read_text() == "precious"


@needs_unix
@pytest.mark.parametrize(
    ("mode", "safe"), [(0o700, True), (0o755, True), (0o777, False), (0o770, False), (0o1777, True)]
)
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int, safe: bool) -> None:
    """Group- or world-writable folders are refused unless they are sticky."""
    folder = tmp_path / "d"
    folder.mkdir()
    folder.chmod(mode)
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as ours:
        if safe:
            with socket_guard(path):
                ours.bind(path)
        else:
            with pytest.raises(ConfigError, match="mode 0700"), socket_guard(path):
                pytest.fail("the guard let a bind happen")


@needs_unix
def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    """A file in the place of the folder stops the start with the system's words."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="for a socket"), socket_guard(str(tmp_path / "file" / "s")):
        pytest.fail("the guard let a bind happen")


@needs_unix
def test_a_bind_that_fails_gives_the_umask_back(tmp_path: Path) -> None:
    """The umask of the process is what it was, also where the bind raised."""
    before = os.umask(0o027)
    try:
        with pytest.raises(RuntimeError, match="the bind"), socket_guard(str(tmp_path / "s")):
            raise RuntimeError("the bind")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_the_welcome_of_a_local_server() -> None:
    """It has the address, the names, what to run here, and how to get here from elsewhere."""
    text = welcome(config("127.0.0.1:0"), [Address(host="127.0.0.1", port=5, is_local=True)])
    assert "4 environments (CartPole-v1, pole) on 127.0.0.1:5" in text
    assert "asyncrl train ppo --env-id CartPole-v1 --servers 127.0.0.1:5" in text
    assert "ssh -N -L 5:127.0.0.1:5" in text


def test_the_welcome_of_a_reachable_server() -> None:
    """It has a host that can be dialled and every file that the other machine needs."""
    settings = config("0.0.0.0:5", **ALL_FILES, tls_client_ca="ca")
    text = welcome(settings, [Address(host="0.0.0.0", port=5)])
    assert f"--servers {socket.gethostname()}:5 --token-file FILE --tls-ca FILE --tls-cert FILE --tls-key FILE" in text
    assert "ssh" not in text
    text = welcome(config("10.0.0.1:5", **ALL_FILES), [Address(host="10.0.0.1", port=5)])
    assert "--servers 10.0.0.1:5 --token-file FILE --tls-ca FILE\n" in text


@needs_unix
def test_the_welcome_of_a_socket() -> None:
    """A socket cannot be forwarded by port, and its token file is named."""
    text = welcome(config("unix:/s", token_file="t"), [Address(path="/s", is_local=True)])
    assert text.endswith("--servers unix:/s --token-file t")
