"""TLS files: a good pair is served, a renewed one too, and a broken one never."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import grpc
import grpc.aio
import pytest

pytest.importorskip("cryptography")

from asyncrl.errors import ConfigError
from envserver import credentials, tls
from envserver.config import ServerConfig
from envserver.listening import add_ports
from envserver.registry import Registry, parse_env_option
from envserver.tls import TlsFiles


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets of files, `a` and `b`, each with a CA of its own."""
    root = tmp_path_factory.mktemp("issued")
    for name in ("a", "b"):
        credentials.new_certificates(str(root / name), ["127.0.0.1", "localhost"])
    return root


@pytest.fixture
def files(issued: Path, tmp_path: Path) -> Path:
    """A folder that starts as a copy of set `a`."""
    return Path(shutil.copytree(issued / "a", tmp_path / "tls"))


def install(source: Path, folder: Path, *names: str) -> None:
    """Replaces files as a renewal does: written beside, then renamed."""
    for name in names:
        fresh = folder / f"{name}.new"
        shutil.copy(source / name, fresh)
        fresh.replace(folder / name)


def loaded(folder: Path) -> TlsFiles:
    found = TlsFiles(str(folder / "server.pem"), str(folder / "server.key"), str(folder / "ca.pem"))
    found.load()
    return found


def test_unchanged_files_are_not_read_again(files: Path) -> None:
    """The fetcher says that nothing is new, so a handshake costs three stat calls."""
    found = loaded(files)
    assert found.fetch() is None
    assert found.fetch() is None


def test_a_renewed_pair_is_fetched_once(issued: Path, files: Path) -> None:
    """After certificate and key were replaced the next handshake gets them, the one after it nothing new."""
    found = loaded(files)
    install(issued / "b", files, "server.pem", "server.key", "ca.pem")
    assert found.fetch() is not None
    assert found.fetch() is None


def test_a_changed_inode_is_a_change(files: Path) -> None:
    """A rename that keeps time and size is seen."""
    found = loaded(files)
    before = (files / "server.pem").stat()
    install(files, files, "server.pem")
    os.utime(files / "server.pem", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert found.fetch() is not None


def test_a_broken_renewal_keeps_the_last_good_pair(issued: Path, files: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate whose key has not come yet is not served; when the key comes, both are."""
    found = loaded(files)
    install(issued / "b", files, "server.pem")
    assert found.fetch() is None
    assert "the old ones stay" in caplog.text
    install(issued / "b", files, "server.key")
    assert found.fetch() is not None


def test_the_fetcher_never_raises(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever becomes of the files, a handshake gets None, and the log a line for each change, not each handshake."""
    found = loaded(files)
    (files / "server.key").unlink()
    for _ in range(50):
        assert found.fetch() is None
    assert len(caplog.records) == 1
    (files / "server.pem").write_bytes(b"\0garbage")
    (files / "server.key").mkdir()
    for _ in range(50):
        assert found.fetch() is None
    assert len(caplog.records) == 2


def test_files_replaced_while_they_were_read_are_read_again(
    issued: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that changed between the check and the read is not served; the next handshake looks again."""
    found = loaded(files)
    read = TlsFiles._read

    def read_late(self: TlsFiles) -> grpc.ServerCertificateConfiguration:
        monkeypatch.setattr(TlsFiles, "_read", read)
        result = read(self)
        install(issued / "b", files, "server.pem", "server.key")
        return result

    install(issued / "b", files, "ca.pem")
    monkeypatch.setattr(TlsFiles, "_read", read_late)
    assert found.fetch() is None
    assert found.fetch() is not None


@pytest.mark.parametrize(
    ("name", "says"),
    [("server.pem", "no certificate with its key"), ("server.key", "no certificate with"), ("ca.pem", "no CA")],
)
def test_garbage_stops_the_start(files: Path, name: str, says: str) -> None:
    """A file that is no PEM stops the start, by name."""
    (files / name).write_text("garbage")
    with pytest.raises(ConfigError, match=says) as caught:
        loaded(files)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_a_missing_file_stops_the_start(files: Path, name: str) -> None:
    """A file that is not there stops the start; the text has the system's words."""
    (files / name).unlink()
    with pytest.raises(ConfigError, match="No such file"):
        loaded(files)


def test_the_key_of_another_certificate_stops_the_start(issued: Path, files: Path) -> None:
    """Two good files that are no pair are found before a client finds them."""
    install(issued / "b", files, "server.key")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        loaded(files)


def test_an_encrypted_key_stops_the_start(files: Path) -> None:
    """A passphrase is never asked for on a terminal that nobody watches."""
    from cryptography.hazmat.primitives import serialization as forms

    key = forms.load_pem_private_key((files / "server.key").read_bytes(), None)
    how = forms.BestAvailableEncryption(b"secret")
    (files / "server.key").write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, how))
    with pytest.raises(ConfigError, match="without a passphrase"):
        loaded(files)


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
@pytest.mark.parametrize(("mode", "good"), [(0o600, True), (0o640, True), (0o604, False), (0o644, False)])
def test_a_key_that_everyone_can_read_stops_the_start(files: Path, mode: int, good: bool) -> None:
    """A private key may be shared with a group, as certificate tools do, and with nobody else."""
    (files / "server.key").chmod(mode)
    if good:
        loaded(files)
    else:
        with pytest.raises(ConfigError, match="chmod 600"):
            loaded(files)


def config(folder: Path, listen: str) -> ServerConfig:
    return ServerConfig(
        registry=Registry([parse_env_option("CartPole-v1")]),
        num_envs=1,
        listen=(listen,),
        token_file="checked elsewhere",
        tls_cert=str(folder / "server.pem"),
        tls_key=str(folder / "server.key"),
    )


async def test_an_address_of_another_machine_says_so(files: Path) -> None:
    """An address that this machine does not have is refused with the system's words."""
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1:0: Cannot assign"):
        add_ports(grpc.aio.server(), config(files, "203.0.113.1:0"))


def test_tls_without_files_says_how_to_make_them() -> None:
    """Asking for TLS without the files is a ConfigError that names the command."""
    plain = ServerConfig(registry=Registry([parse_env_option("CartPole-v1")]), num_envs=1)
    with pytest.raises(ConfigError, match="envserver cert new"):
        tls.server_credentials(plain)


async def echo(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


async def test_a_renewed_certificate_serves_the_next_connection(
    issued: Path, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a restart: clients that trust the old CA connect before the renewal, those of the new one after it."""
    caplog.set_level(logging.INFO)
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": method}),))
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(config(files, "0.0.0.0:1")))
    await server.start()

    async def trusts(ca: Path) -> bool:
        creds = grpc.ssl_channel_credentials((ca / "ca.pem").read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", creds, options=options) as channel:
            call = channel.unary_unary("/test.Echo/Echo", None, None)(b"x", timeout=10)
            code = await call.code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
        return code is grpc.StatusCode.OK

    try:
        assert [await trusts(issued / "a"), await trusts(issued / "b")] == [True, False]
        install(issued / "b", files, "server.pem", "server.key")
        assert [await trusts(issued / "a"), await trusts(issued / "b")] == [False, True]
        assert "TLS files read again" in caplog.text
    finally:
        await server.stop(0)
