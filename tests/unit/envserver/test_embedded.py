"""`python -m envserver.embedded`: options as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from envserver.embedded import main, options_from
from envserver.options import Options


def test_fields_of_the_json_are_those_of_the_options() -> None:
    """Lists are tuples, and what is not there has its default."""
    told = {"env": ["a=CartPole-v1", "Taxi-v4"], "num_envs": 3, "quota": ["lease_s=7"], "warm": True}
    assert options_from(json.dumps(told)) == Options(
        env=("a=CartPole-v1", "Taxi-v4"), num_envs=3, quota=("lease_s=7",), warm=True, embedded=True
    )


def test_an_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With those that there are, and the status of a mistake."""
    assert main([json.dumps({"env": ["CartPole-v1"], "num-envs": 3})]) == 2
    said = capsys.readouterr().err
    assert "num-envs" in said
    assert "num_envs" in said


def test_an_embedded_server_reads_no_command_line() -> None:
    """What parses one is not imported, and neither is the simulator, which the nursery has."""
    code = (
        "import sys\nfrom envserver import embedded, server\n"
        "print(sorted({'tyro', 'typeguard', 'rich', 'gymnasium', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
