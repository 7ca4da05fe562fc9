"""asyncrl.cli: the list of commands, mistakes, exit statuses."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import asyncrl
from asyncrl import cli
from asyncrl.errors import ConfigError, ConnectionFailed


def test_help_pulls_in_nothing_heavy() -> None:
    """Whoever mistypes a command waits for no import of gRPC, NumPy or Gymnasium."""
    code = (
        "import sys; from asyncrl.cli import main; assert main(['--help']) == 0; assert main(['nosuch']) == 2; "
        "print([name for name in ('grpc', 'numpy', 'gymnasium', 'rich', 'tyro', 'torch') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_an_impatient_ctrl_c_has_no_traceback() -> None:
    """The second one, when everything is written and the interpreter ends: by the signal, in silence."""
    code = (
        "import atexit, os, signal, sys; from asyncrl.cli import command; sys.argv = ['asyncrl', '--version']; "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); sys.exit(command())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The version is that of the package."""
    assert cli.main([flag]) == 0
    assert capsys.readouterr().out == f"asyncrl {asyncrl.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the list comes too, with a status that says that something is missing."""
    for arguments, status in ((["--help"], 0), ([], 2)):
        assert cli.main(arguments) == status
        shown = capsys.readouterr().out
        assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["trian"], "did you mean 'train'"),
        (["checkserver"], "did you mean 'check-server'"),
        (["--verson"], "did you mean '--version'"),
        (["train", "ppoo"], "did you mean 'ppo'"),
        (["check_server", "localhost:1", "--only", "ping_is_answered"], "did you mean 'ping_is_answered_by_pong'"),
        (["train", "--env-kwargs", "{"], "env_kwargs is no JSON"),
        (["train", "--env-kwargs", "3"], "JSON object"),
        (["train", "--servers", "nowhere"], "HOST:PORT"),
    ],
)
def test_mistakes_name_the_nearest(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is one line that says what to type instead, and status 2."""
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert meant in said
    assert said.startswith("asyncrl: ")


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name not in ("runs", "plot")])
def test_an_unknown_flag_names_the_nearest(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tyro's own suggestion reaches the user."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "ppo" if command == "train" else "localhost:1", "--token-fil", "x"])
    assert ended.value.code == 2
    assert "--token-file" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("x"), 2), (ConnectionFailed("y"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_become_a_line_and_a_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for what is not a bug of ours."""

    def fails(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fails)
    assert cli.main(["train"]) == status
    assert capsys.readouterr().err == (f"asyncrl: {error}\n" if str(error) else "")
