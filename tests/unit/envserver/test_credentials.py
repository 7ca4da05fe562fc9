"""`envserver token new` and `cert new`: what they write, what they never overwrite, and what they never show."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from asyncrl.errors import ConfigError
from envserver import credentials
from envserver.auth import read_tokens
from envserver.tls import TlsFiles

posix_modes = pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def token_in(path: Path) -> str:
    return path.read_text().splitlines()[-1].split()[1]


def test_a_new_token_file_is_one_that_the_server_takes(tmp_path: Path) -> None:
    """The file has one token of 256 bits with its role, and no two are alike."""
    paths = [tmp_path / "deep" / "a", tmp_path / "b"]
    texts = [credentials.new_token(str(path), role) for path, role in zip(paths, ("learner", "observer"), strict=True)]
    assert [list(read_tokens(str(path)).values()) for path in paths] == [["learner"], ["observer"]]
    assert len({token_in(path) for path in paths}) == 2
    assert all(len(token_in(path)) >= 43 for path in paths)
    assert f"--token-file {paths[0]}" in texts[0]


@posix_modes
def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Token and keys have mode 0600 whatever the umask, and are not in the text for the terminal."""
    before = os.umask(0)
    try:
        shown = credentials.new_token(str(tmp_path / "t"), "learner")
        shown += credentials.new_certificates(str(tmp_path / "c"), ["h"], client="trainer")
    finally:
        os.umask(before)
    secret = [tmp_path / "t", tmp_path / "c" / "server.key", tmp_path / "c" / "client.key"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secret] == [0o600] * 3
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert token_in(tmp_path / "t") not in shown
    assert "PRIVATE" not in shown


def test_a_secret_is_private_from_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is given when the file is created: there is no moment in which it can be opened by others."""
    calls: list[tuple[int, int]] = []
    real: Callable[..., int] = os.open

    def spy(path: Path, flags: int, mode: int = 0o777) -> int:
        calls.append((flags, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", spy)
    credentials.write_secret(tmp_path / "s", b"x")
    assert [(bool(flags & os.O_EXCL), mode) for flags, mode in calls] == [(True, 0o600)]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A file in the way stops the command and stays as it was, and no half set is left beside it."""
    token = tmp_path / "t"
    token.write_text("mine")
    with pytest.raises(ConfigError, match="nothing was written"):
        credentials.new_token(str(token), "learner")
    assert token.read_text() == "mine"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "server.pem").write_text("mine")
    with pytest.raises(ConfigError, match=r"server\.pem already"):
        credentials.new_certificates(str(tmp_path / "c"), ["h"])
    assert names_in(tmp_path / "c") == ["server.pem"]


@posix_modes
def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    """A link in the place of a file does not send the secret elsewhere, and what came before it is taken back."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "server.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="exists"):
        credentials.new_certificates(str(tmp_path / "c"), ["h"])
    assert names_in(tmp_path / "c") == ["server.pem"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    """The system's words are in the error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot make the folder .*: File exists"):
        credentials.new_token(str(tmp_path / "file" / "t"), "learner")


def test_certificates_name_what_clients_dial(tmp_path: Path) -> None:
    """Host names become DNS entries, also those beyond ASCII, and numbers become IP entries."""
    hosts = ["gpu1.example", "bücher.example", "10.0.0.7", "2001:db8::1"]
    credentials.new_certificates(str(tmp_path / "c"), hosts)
    server = x509.load_pem_x509_certificate((tmp_path / "c" / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu1.example", "xn--bcher-kva.example"]
    assert names.get_values_for_type(x509.IPAddress) == list(map(ipaddress.ip_address, hosts[2:]))


def test_the_chain_is_good_in_the_eyes_of_openssl(tmp_path: Path) -> None:
    """Both sides of a TLS handshake in memory, with client certificate: every name and usage holds."""
    folder = tmp_path / "c"
    text = credentials.new_certificates(str(folder), ["gpu1.example"], client="trainer")
    assert "--tls-client-ca" in text
    TlsFiles(str(folder / "server.pem"), str(folder / "server.key"), str(folder / "ca.pem")).load()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    client.load_cert_chain(folder / "client.pem", folder / "client.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="gpu1.example")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    open_ends = [ours, theirs]
    for _ in range(10):
        for end in list(open_ends):
            try:
                end.do_handshake()
                open_ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert open_ends == []
    peer = theirs.getpeercert()
    assert peer is not None
    assert ("DNS", "trainer") in peer["subjectAltName"]


def test_the_ca_cannot_serve_and_the_server_cannot_sign(tmp_path: Path) -> None:
    """Each certificate may do one thing."""
    ca = credentials.issue("ca")
    server = credentials.issue("h", ["h"], ca)
    may_sign = [
        issued.certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        for issued in (ca, server)
    ]
    assert may_sign == [True, False]
    assert [
        issued.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for issued in (ca, server)
    ] == [True, False]


def test_a_certificate_for_nobody_is_refused(tmp_path: Path) -> None:
    """No host, and what is no host name, are ConfigErrors; nothing is written."""
    with pytest.raises(ConfigError, match="--host HOST_OR_IP"):
        credentials.new_certificates(str(tmp_path / "c"), [])
    with pytest.raises(ConfigError, match="neither an IP address nor a host name"):
        credentials.new_certificates(str(tmp_path / "c"), ["bü" + "c" * 70 + "her"])
    assert names_in(tmp_path) == []


def test_without_the_package_the_text_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `cryptography` is not installed, the error is the command that installs it."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[tls\]'"):
        credentials.new_certificates(str(tmp_path / "c"), ["h"])
    assert names_in(tmp_path) == []
