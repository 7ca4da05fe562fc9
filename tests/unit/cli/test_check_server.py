"""asyncrl check-server on a real server: table, JSON, exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.conformance import CHECKS, Bench, Failed
from asyncrl.conformance.registry import Check
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc
FEW = ["--only", "ping_is_answered_by_pong", "--only", "actions_that_are_no_numbers_are_refused"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("CartPole-v1", "Taxi-v4") as address:
        yield address


def test_a_good_server_gives_status_0(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each check has a line, those that do not apply a reason, and the JSON says the same."""
    report = tmp_path / "report.json"
    assert cli.main(["check-server", server, "--verbose", "--json", str(report), *FEW]) == 0
    shown = capsys.readouterr().out
    assert "environment CartPole-v1" in shown
    assert "passed  ping_is_answered_by_pong" in shown
    assert "- nonce 0xfeedfacecafe, executed 2" in shown
    assert "it has no floating action" in shown
    results = json.loads(report.read_text())["results"]
    assert [(each["check"], each["status"]) for each in results] == [
        ("actions_that_are_no_numbers_are_refused", "skipped"),
        ("ping_is_answered_by_pong", "passed"),
    ]
    assert all(each["demand"] and each["section"] for each in results)


def test_a_failure_gives_status_1(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed comes with the demand, its place in the protocol, the reason, and what was seen before."""

    async def fails(bench: Bench) -> None:
        bench.note("looked at [it]")
        raise Failed("it is [not] there")

    name = "ping_is_answered_by_pong"
    monkeypatch.setitem(CHECKS, name, Check(name, "It must be there.", "3. ORDER", fails))
    assert cli.main(["check-server", server, "--env", "Taxi-v4", *FEW[:2]]) == 1
    shown = capsys.readouterr().out
    for text in (
        "environment Taxi-v4",
        "It must be there.",
        "env.proto, 3. ORDER",
        "it is [not] there",
        "looked at [it]",
    ):
        assert text in shown


def test_json_can_have_standard_output(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json - the table goes to standard error."""
    assert cli.main(["check-server", server, "--json", "-", *FEW[:2]]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["results"][0]["status"] == "passed"
    assert "passed" in captured.err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--env", "nosuch"], 2, "CartPole-v1, Taxi-v4"),
        (["--kwargs", "["], 2, "no JSON"),
        (["--kwargs", "3"], 2, "object"),
        (["--kwargs", '{"foo": 1}'], 2, "foo"),
        (["--json", "nodir/report.json"], 2, "no directory nodir for report.json"),
    ],
)
def test_mistakes_are_told(
    server: str, arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any check has run. A wrong alias lists those there are."""
    assert cli.main(["check-server", server, *FEW, *arguments]) == status
    shown = capsys.readouterr()
    assert text in shown.err
    assert len(shown.err.splitlines()) == 1
    assert "passed" not in shown.out
    assert "failed" not in shown.out


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing listens, status 1 and the stage that failed."""
    assert cli.main(["check-server", "127.0.0.1:1"]) == 1
    assert "nothing listens" in capsys.readouterr().err
