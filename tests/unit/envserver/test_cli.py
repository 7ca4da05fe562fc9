"""The `envserver` command: mistakes, help, options to settings, and a start and an end for real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from envserver import auth, cli, server
from envserver.cli import Serve, main
from envserver.config import Quotas, ServerConfig
from envserver.options import Options, config_from


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envserver", *arguments]
    settings = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=settings, check=False)


def options(*arguments: str) -> Options:
    return Options(**vars(tyro.cli(Serve, args=list(arguments))))


def test_help_pulls_in_nothing_heavy() -> None:
    """Reading the options needs neither gRPC nor NumPy nor Gymnasium."""
    heavy = {"numpy", "gymnasium", "grpc", "google", "cryptography", "uvloop"}
    code = (
        "import sys, contextlib, io\nfrom envserver.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_help_has_every_option() -> None:
    """`--help` names every field of the command and the two commands that make files."""
    shown = run("--help")
    assert shown.returncode == 0
    for name in Serve.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in shown.stdout
    assert "envserver token new" in shown.stdout
    assert "envserver cert new" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "pass --env CartPole-v1"),
        ("--env CartPole-v1 --num-envs 0", "--num-envs 0"),
        ("--env CartPole-v1 --listen 0.0.0.0:1", "envserver token new"),
        ("--env CartPole-v1 --listen 50051", "127.0.0.1:50051"),
        ("--env CartPole-v1 --tls-cert x", "--tls-key"),
        ("--env CartPole-v1 --token-file /no/such/file --listen 127.0.0.1:0", "envserver token new /no/such/file"),
        ("--env CartPole-v1 --quota nothing=1", "lane_memory_bytes"),
        ("--env CartPole-v1 --quota lease_s", "lease_s=NUMBER"),
        ("--env CartPole-v1 --quota max_in_flight=1.5", "max_in_flight=INTEGER"),
        ("--env CartPole-v1 --quota receive_bytes=0", "above 0"),
        ("--env CartPole-v1 --quota lease_s=inf", "lease_s is inf; it can be 2147483 at most"),
        ("--env CartPole-v1 --drain-s inf", "drain_s is inf; 0 to 2147483 seconds"),
        ("--env CartPole-v1 --env CartPole-v1", "twice"),
        ("--env a=b=c:d", "--env"),
        ("--env CartPole-v1 --core 4095", "choose one of"),
        ("--env CartPol-v1", "did you mean CartPole-v1"),
        ("--env CartPole-v1 --env-kwargs-schema x.json", "NAME=FILE.json"),
        ("--env CartPole-v1 --env-kwargs-schema other=x.json", "a NAME of CartPole-v1"),
        ("--env CartPole-v1 --env-kwargs-schema CartPole-v1=/no/such/file", "cannot read the schema"),
        ("token", "envserver token new --help"),
        ("cert old", "envserver cert new --help"),
        ("token new /dev/null", "exists"),
    ],
)
def test_mistakes_exit_with_2_and_name_the_fix(
    line: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake is one text on standard error, without a traceback, and exit status 2."""

    async def never(config: ServerConfig) -> int:
        if config.token_file is not None:  # this file is read by the server itself
            auth.interceptors(config)
        return 99

    monkeypatch.setattr(server, "serve", never)
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("envserver: ")
    assert says in shown.err


@pytest.mark.parametrize("line", ["--num-envs many --env CartPole-v1", "--launcher fork", "--no-such-option", "serve"])
def test_options_that_cannot_be_read_exit_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong types, choices and names end the command before anything is started."""
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert "envserver" in capsys.readouterr().err


def test_options_become_settings() -> None:
    """Every option arrives in the config."""
    line = (
        "--env CartPole-v1 --env pole=CartPole-v1 --num-envs 5 --lanes 2 --warm --listen 127.0.0.1:1 --listen [::1]:2 "
        "--token-file t --tls-cert c --tls-key k --tls-client-ca a --drain-s 0.5 --launcher exec "
        "--quota lease_s=3 --quota lane_memory_bytes=7"
    )
    config = config_from(options(*line.split()))
    assert config.registry.aliases == ["CartPole-v1", "pole"]
    assert config == ServerConfig(
        registry=config.registry,
        num_envs=5,
        lanes=2,
        warm=True,
        listen=("127.0.0.1:1", "[::1]:2"),
        token_file="t",
        tls_cert="c",
        tls_key="k",
        tls_client_ca="a",
        drain_s=0.5,
        launcher="exec",
        quotas=Quotas(lease_s=3.0, lane_memory_bytes=7),
    )


def test_without_options_the_defaults_hold() -> None:
    """An alias is all that a server needs, and it then listens on this machine alone."""
    asked = options("--env", "CartPole-v1")
    assert asked == Options(env=("CartPole-v1",))  # what programs get that start a server as their child
    config = config_from(asked)
    assert config == ServerConfig(registry=config.registry, num_envs=64)
    assert config.listen == ("127.0.0.1:50051",)


def test_files_are_made_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands say where they wrote and exit with 0; the token stays in its file."""
    pytest.importorskip("cryptography")
    token, folder = tmp_path / "t", tmp_path / "c"
    assert main(["token", "new", str(token), "--role", "observer"]) == 0
    assert main(["cert", "new", "--out", str(folder), "--host", "h", "--host", "10.0.0.1", "--client", "me"]) == 0
    shown = capsys.readouterr().out
    assert token.read_text().split()[-2] == "observer"
    assert token.read_text().split()[-1] not in shown
    assert sorted(path.name for path in folder.iterdir()) == [
        *("ca.pem", "client.key", "client.pem", "server.key", "server.pem"),
    ]
    assert str(folder / "server.pem") in shown


def test_ctrl_c_before_the_server_runs_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt before the server runs ends the command as shells expect."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    assert main(["--env", "CartPole-v1"]) == 130


@pytest.mark.rpc
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("loop", ["0", "1"])
async def test_a_server_starts_says_where_and_ends_with_0(loop: str) -> None:
    """One JSON line on standard output with the port that was free, a welcome on the other, and a clean end."""
    command = [sys.executable, "-m", "envserver", "--env", "CartPole-v1", "--listen", "127.0.0.1:0", "--drain-s", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "ASYNCRL_UVLOOP": loop}
    process = await asyncio.create_subprocess_exec(*command, **pipes, env=environment)  # type: ignore[arg-type]
    assert process.stdout is not None
    try:
        ready = json.loads(await process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()
    host, _, port = ready["ready"].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert out == b""
    assert f"--servers 127.0.0.1:{port}" in err.decode()
    assert process.returncode == 0, err.decode()
