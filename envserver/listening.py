"""Where a server listens: addresses, which of them only this machine can reach, and what the others need.

Invariants: an address that is not surely local is taken for one that everyone can reach
(test_only_loopback_and_unix_sockets_are_local); such an address without token and TLS stops the start, and the text
says what to pass (test_a_reachable_address_needs_token_and_tls); a Unix socket on which somebody answers is never
removed (test_a_live_socket_is_left_alone), and nobody but its owner can connect to ours
(test_our_socket_is_for_its_owner_alone).

A client with plaintext (`grpc::InsecureChannelCredentials` in C++) can talk to a local listener: local credentials put
nothing on the wire, they only check where the peer is (test_a_plaintext_client_reaches_a_local_listener). It cannot
attach call credentials, but the metadata `authorization: Bearer TOKEN` works.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncrl.errors import ConfigError
from envserver.config import ServerConfig

if TYPE_CHECKING:
    import grpc.aio

UNIX_PATH_BYTES: Final = 107  # what sockaddr_un holds, without its final zero
_PROBE_S: Final = 1.0
_SAY = "say HOST:PORT, [IPV6]:PORT or unix:PATH, such as 127.0.0.1:50051"


@dataclass(frozen=True)
class Address:
    """One place to listen: either `host` and `port`, or the `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    is_local: bool = False

    @property
    def target(self) -> str:
        """As gRPC wants it. Its unix: form is a URI, where % starts an escape."""
        return f"unix:{urllib.parse.quote(self.path)}" if self.path else str(self)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """An address as `--listen` has it. Names are looked up, because whether one is local is decided here."""
    if text.startswith("unix:"):
        return _parse_unix(text)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {text!r} has no port: {_SAY}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"--listen {text!r}: an IPv6 address stands in brackets, [{host}]:{port}")
    if not host or host == "*":
        raise ConfigError(f"--listen {text!r} names no host: 127.0.0.1 is this machine alone, 0.0.0.0 every interface")
    return _locate(text, host, int(port))


def check(config: ServerConfig) -> list[Address]:
    """The addresses of a config. Refuses what others could reach without a token over TLS."""
    addresses = [parse(text) for text in config.listen]
    reachable = next((address for address in addresses if not address.is_local), None)
    missing = [option for option, value in _protections(config) if value is None]
    if reachable is not None and missing:
        raise ConfigError(_refusal(reachable, missing))
    return addresses


def add_ports(server: grpc.aio.Server, config: ServerConfig) -> list[Address]:
    """Binds every address of a config; gives them as they are, with the ports that were free."""
    from envserver import tls

    addresses = check(config)
    remote = tls.server_credentials(config) if any(not each.is_local for each in addresses) else None
    bound = []
    for address in addresses:
        credentials = remote if remote is not None and not address.is_local else tls.local_credentials(address.path)
        with socket_guard(address.path) if address.path else contextlib.nullcontext():
            try:
                port = server.add_secure_port(address.target, credentials)
            except RuntimeError:
                raise ConfigError(f"cannot listen on {address}: {_why_not(address)}") from None
        bound.append(address if address.path else replace(address, port=port))
    return bound


def welcome(config: ServerConfig, bound: list[Address]) -> str:
    """What a person wants to know of a server that has started: where it is and what to run to use it."""
    aliases = config.registry.aliases
    lines = [f"envserver: {config.num_envs} environments ({', '.join(aliases)}) on {', '.join(map(str, bound))}"]
    remote = next((address for address in bound if not address.is_local), None)
    shown = remote or bound[0]
    host = socket.gethostname() if shown.host in ("0.0.0.0", "::") else shown.host
    servers = str(replace(shown, host=host))
    options = f" --token-file {config.token_file}" if config.token_file else ""
    if remote:
        options = " --token-file FILE --tls-ca FILE" + (
            " --tls-cert FILE --tls-key FILE" if config.tls_client_ca else ""
        )
    where = "on the other machine" if remote else "on this machine"
    lines.append(f"  {where}:  asyncrl train ppo --env-id {aliases[0]} --servers {servers}{options}")
    if remote:
        lines.append(
            "  with copies of the token file and of ca.pem, which `envserver cert new` wrote beside the certificate"
        )
    elif shown.port:
        lines.append(f"  from elsewhere:   first  ssh -N -L {shown.port}:{shown} USER@{socket.gethostname()}")
    return "\n".join(lines)


def _parse_unix(text: str) -> Address:
    if not hasattr(socket, "AF_UNIX") or os.environ.get("ASYNCRL_UNIX_SOCKETS") == "0":
        raise ConfigError(f"--listen {text!r}: no Unix sockets here; say 127.0.0.1:PORT")
    path = text.removeprefix("unix:")
    if path.startswith("//"):  # unix:///run/x, the URI form
        path = path[2:]
    if not path or path.endswith("/"):
        raise ConfigError(f"--listen {text!r} names no socket: say unix:/run/user/1000/envserver/socket")
    absolute = os.fspath(Path(path).absolute())
    if len(os.fsencode(absolute)) > UNIX_PATH_BYTES:
        raise ConfigError(f"--listen {text!r}: the path of a Unix socket has at most {UNIX_PATH_BYTES} bytes")
    return Address(path=absolute, is_local=True)


def _locate(text: str, host: str, port: int) -> Address:
    """Local only if every address behind the name is loopback. gRPC then gets the number: a name could change."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--listen {text!r}: {host} has no address here ({error.strerror})") from None
    numbers = sorted((str(entry[4][0]) for entry in found), key=lambda number: ":" in number)  # IPv4 first
    if all(ipaddress.ip_address(number).is_loopback for number in numbers):
        return Address(host=numbers[0], port=port, is_local=True)
    return Address(host=host, port=port)


def _protections(config: ServerConfig) -> list[tuple[str, str | None]]:
    return [
        ("--token-file", config.token_file),
        ("--tls-cert", config.tls_cert),
        ("--tls-key", config.tls_key),
    ]


def _refusal(address: Address, missing: list[str]) -> str:
    host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host
    recipes = {
        "--token-file": "  --token-file token.txt     made by: envserver token new token.txt",
        "--tls-cert": f"  --tls-cert certs/server.pem --tls-key certs/server.key\n"
        f"                             made by: envserver cert new --out certs --host {host}",
    }
    recipes["--tls-key"] = recipes["--tls-cert"]
    asked = dict.fromkeys(recipes[option] for option in missing)  # the two of TLS share a recipe
    return (
        f"other machines could reach {address}, and whoever reaches an env server runs programs on it. Pass\n"
        + "\n".join(asked)
        + f"\nor listen on this machine alone: --listen 127.0.0.1:{address.port}"
    )


def _why_not(address: Address) -> str:
    """The system's reason, which gRPC only logs: found by binding once more without it."""
    if address.path:
        return f"gRPC could not make a socket in {Path(address.path).parent}"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address.host, address.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "another program listens there; choose another port, or 0 for a free one"
        return error.strerror or str(error)
    return "gRPC refused the address"


@contextlib.contextmanager
def socket_guard(path: str) -> Iterator[None]:
    """Around the bind of a Unix socket: a safe folder before it, no stale socket in it, and mode 0600 after it."""
    _safe_folder(Path(path).parent)
    _clear_stale(path)
    before = os.umask(0o177)  # of the whole process, and until the bind only: no moment with a wider mode
    try:
        yield
    finally:
        os.umask(before)
    Path(path).chmod(0o600)


def _safe_folder(folder: Path) -> None:
    """Makes it 0700 if it is missing. Where others can write they could put a socket of theirs in the place of ours."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"cannot use {folder} for a socket: {error.strerror}") from None
    shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if shared or status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"others can write to {folder}, so a socket in it is not safe: use a folder of mode 0700")


def _clear_stale(path: str) -> None:
    """Removes a socket that nobody listens on; whoever is unsure of it is told to look."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is no socket: choose another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()  # the kernel refuses for one reason only: no process has it open any more
            return
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"cannot tell whether {path} is in use ({error.strerror}): choose another path") from None
    raise ConfigError(f"another env server listens on unix:{path}: stop it, or choose another path")
