"""Addresses of env servers: `host:port`, `[v6]:port`, `unix:/path`."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from asyncrl.errors import ConfigError

MAX_UNIX_PATH_BYTES = 107
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "::1"})


@dataclass(frozen=True)
class Address:
    """A parsed address; `path` for Unix sockets, `host` and `port` otherwise."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    @property
    def target(self) -> str:
        """As gRPC wants it. Its unix: form is a URI, where % starts an escape."""
        return f"unix:{urllib.parse.quote(self.path)}" if self.path else self.text

    @property
    def is_loopback(self) -> bool:
        return self.host in _LOOPBACK_NAMES or self.host.startswith("127.")


def parse(text: str) -> Address:
    """An address, or ConfigError with what to write instead."""
    text = text.strip()
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path or len(path.encode()) > MAX_UNIX_PATH_BYTES:
            raise ConfigError(f"{text!r}: a Unix socket needs a path of 1 to {MAX_UNIX_PATH_BYTES} bytes")
        return Address(text, path=path)
    if "://" in text:
        raise ConfigError(f"{text!r}: write HOST:PORT without a scheme; TLS is chosen by where the server listens")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is no address: write HOST:PORT, [IPV6]:PORT or unix:/path")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:50051")
    return Address(text, host=host.strip("[]"), port=int(port))


def is_local(text: str) -> bool:
    """Whether the server is on this machine as far as its address tells."""
    try:
        address = parse(text)
    except ConfigError:
        return True  # an in-memory address of a simulation
    return address.is_unix or address.is_loopback
