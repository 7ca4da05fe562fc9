"""Files of credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.client.addresses import parse
from asyncrl.client.credentials import Access, TokenFile, channel_credentials
from asyncrl.errors import ConfigError


def test_a_token_needs_tls_off_this_machine() -> None:
    """Whatever is passed, another machine is reached over TLS; this one without, unless a CA is named."""
    bare, with_ca = Access(token_file="t"), Access(token_file="t", tls_ca="ca.pem")
    assert bare.uses_tls(parse("worker:1"))
    assert with_ca.uses_tls(parse("worker:1"))
    assert not bare.uses_tls(parse("127.0.0.1:1"))
    assert with_ca.uses_tls(parse("127.0.0.1:1"))
    assert not with_ca.uses_tls(parse("unix:/x"))


def test_a_rotated_token_is_used(tmp_path: Path) -> None:
    """Read again when the file changes; while it cannot be used, the old one stays."""
    path = tmp_path / "token"
    path.write_text("learner one\n")
    tokens = TokenFile(str(path))
    assert tokens.token() == "one"
    path.write_text("learner two-and-longer\n")
    assert tokens.token() == "two-and-longer"
    path.write_text("# nothing\n")
    assert tokens.token() == "two-and-longer"
    path.unlink()
    assert tokens.token() == "two-and-longer"
    path.write_text("learner three\n")
    assert tokens.token() == "three"


@pytest.mark.parametrize("text", ["", "observer abc\n", "learner\n", "learner a b\n", "# learner a\n"])
def test_a_file_without_a_learner_token_stops_the_start(tmp_path: Path, text: str) -> None:
    """Better now than as UNAUTHENTICATED later."""
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError, match="learner TOKEN"):
        TokenFile(str(path))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tls_ca": "/nowhere/ca.pem"}, "tls_ca /nowhere/ca.pem"),
        ({"token_file": "/nowhere/token"}, "token file /nowhere/token"),
    ],
)
def test_missing_files_are_named(fields: dict[str, str], text: str) -> None:
    """Which setting, which path."""
    with pytest.raises(ConfigError, match=text):
        channel_credentials(parse("worker:1"), Access(**fields))


@pytest.mark.parametrize("fields", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_cert": "c", "tls_key": "k"}])
def test_half_a_pair_is_refused(fields: dict[str, str]) -> None:
    """Certificate, key and CA belong together."""
    with pytest.raises(ConfigError, match="pass"):
        Access(**fields)
