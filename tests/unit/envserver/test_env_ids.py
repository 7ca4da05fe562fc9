"""Looking up what `--env` names: in a process of its own, with a suggestion for what was probably meant."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from envserver import env_ids
from envserver.env_ids import EnvIdCheck, complaint
from envserver.registry import Registry, parse_env_option


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("CartPole-v1", None),
        ("mine=json:loads", None),
        ("theirs=gymnasium:CartPole-v1", None),
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("cartpole-v1", "did you mean CartPole-v1"),
        ("CartPole-v99", "did you mean CartPole-v1"),
        ("mine=json:loafs", "json has no function 'loafs'; did you mean loads"),
        ("mine=json:decoder", "no function 'decoder'"),
        ("mine=no_such_module.envs:make", "cannot import no_such_module.envs (No module named 'no_such_module')"),
        ("qqqqqqqq", "no environment 'qqqqqqqq'"),
    ],
)
def test_what_cannot_be_made_is_named_with_what_was_meant(option: str, says: str | None) -> None:
    """Every kind of alias, good and bad."""
    found = complaint(parse_env_option(option))
    assert (found is None) == (says is None)
    if says is not None and found is not None:
        assert says in found


def test_nothing_near_means_no_suggestion() -> None:
    """A guess that helps nobody is not made."""
    assert "did you mean" not in (complaint(parse_env_option("qqqqqqqq")) or "")


def test_atari_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ALE id where ale_py is missing names the extra."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert r"pip install 'asyncrl[atari]'" in (complaint(parse_env_option("pong=ALE/Pong-v5")) or "")


def test_a_misspelt_game_is_found() -> None:
    """ALE ids are known once ale_py is there."""
    pytest.importorskip("ale_py")
    assert complaint(parse_env_option("ALE/Pong-v5")) is None
    assert "did you mean ALE/Pong-v5" in (complaint(parse_env_option("ALE/Pnog-v5")) or "")


def test_all_complaints_come_at_once() -> None:
    """A real process: one error with a line for each bad alias."""
    registry = Registry(map(parse_env_option, ["CartPol-v1", "CartPole-v1", "mine=json:nothing_like_it"]))
    with pytest.raises(ConfigError) as caught:
        EnvIdCheck(registry).finish()
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["--env CartPol-v1", "--env mine"]


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')",
        "import ctypes; ctypes.CDLL(None).printf(b'hello from C\\n')",
        "import subprocess; subprocess.run(['echo', 'hello from a program'], check=True)",
        "import atexit; atexit.register(print, 'good bye')",
        "import os; os._exit(3)",
        "import os; os._exit(0)",
        "import sys; sys.exit()",
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="ctypes.CDLL(None), echo")
def test_a_module_that_greets_or_crashes_does_no_harm(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a module prints is taken for a part of the answer, and a crash is left to the lane that needs it."""
    (tmp_path / "greeting.py").write_text(f"{text}\ndef make(): ...")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    EnvIdCheck(Registry([parse_env_option("a=greeting:make")])).finish()
    if "exit(" not in text:
        with pytest.raises(ConfigError, match="no function 'take'"):
            EnvIdCheck(Registry([parse_env_option("a=greeting:take")])).finish()


def test_a_module_sees_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that imports it has the environment of a lane."""
    (tmp_path / "curious.py").write_text("import os\nraise ImportError(sorted(os.environ))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ASYNCRL_TOKEN", "s3cret")
    with pytest.raises(ConfigError, match="PYTHONPATH") as caught:
        EnvIdCheck(Registry([parse_env_option("a=curious:make")])).finish()
    assert "ASYNCRL_TOKEN" not in str(caught.value)


def test_a_module_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended, and the start goes on."""
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(env_ids, "CHECK_S", 0.2)
    check = EnvIdCheck(Registry([parse_env_option("a=endless:make")]))
    check.finish()
    assert check._process.returncode is not None
