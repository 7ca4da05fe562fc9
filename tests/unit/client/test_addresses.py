"""Addresses, good and bad."""

from __future__ import annotations

import pytest

from asyncrl.client.addresses import is_local, parse
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "path", "target", "local"),
    [
        ("worker:50051", "worker", 50051, "", "worker:50051", False),
        (" 127.0.0.1:1 ", "127.0.0.1", 1, "", "127.0.0.1:1", True),
        ("localhost:65535", "localhost", 65535, "", "localhost:65535", True),
        ("[::1]:7", "::1", 7, "", "[::1]:7", True),
        ("[fe80::1]:7", "fe80::1", 7, "", "[fe80::1]:7", False),
        ("unix:/run/x y%/s", "", 0, "/run/x y%/s", "unix:/run/x%20y%25/s", True),
        ("unix:///run/s", "", 0, "/run/s", "unix:/run/s", True),
    ],
)
def test_addresses_are_taken_apart(text: str, host: str, port: int, path: str, target: str, local: bool) -> None:
    """Each form, what gRPC is told, and whether it is this machine."""
    address = parse(text)
    assert (address.host, address.port, address.path, address.target) == (host, port, path, target)
    assert is_local(text) is local


@pytest.mark.parametrize(
    "text",
    ["", "worker", "worker:", ":50051", "worker:0", "worker:65536", "worker:x", "http://w:1", "::1:50051", "unix:"],
)
def test_what_is_no_address_says_what_to_write(text: str) -> None:
    """One typed error with the form to use."""
    with pytest.raises(ConfigError, match=r"write HOST:PORT|brackets|needs a path"):
        parse(text)


def test_a_long_socket_path_is_refused_with_the_limit() -> None:
    """sockaddr_un holds 107 bytes, and connect() would only say EINVAL."""
    parse("unix:/" + "x" * 106)
    with pytest.raises(ConfigError, match="107"):
        parse("unix:/" + "x" * 107)
