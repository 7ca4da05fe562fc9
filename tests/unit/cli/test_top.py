"""asyncrl top on a real server, and on one that is not there."""

from __future__ import annotations

import pytest

import asyncrl
from asyncrl import cli
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc


def test_top_shows_use_and_what_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row per server: slots used of its capacity, its environments, and a reason where there is nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    with serving("CartPole-v1", num_envs=7) as address:
        env = asyncrl.RemoteVectorEnv("CartPole-v1", 3, address)
        assert cli.main(["top", address, "--once"]) == 0
        cells = [cell.strip() for cell in capsys.readouterr().out.split("│")]
        assert [address, "CartPole-v1", "3", "7"] == cells[cells.index(address) :][:4]
        assert "serving" in cells
        assert cli.main(["top", f"{address},127.0.0.1:1"]) == 1
        assert "nothing listens" in capsys.readouterr().out
        env.close()
