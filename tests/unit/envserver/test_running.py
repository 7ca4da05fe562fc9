"""The loop of a server and how the kernel schedules it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from envserver import running


def test_the_loop_is_uvloops_unless_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASYNCRL_UVLOOP=0, and a machine without uvloop, give the loop of asyncio."""
    monkeypatch.delenv("ASYNCRL_UVLOOP", raising=False)
    uvloop = pytest.importorskip("uvloop")
    assert running.loop_factory() is uvloop.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert running.loop_factory() is None
    monkeypatch.undo()
    monkeypatch.setenv("ASYNCRL_UVLOOP", "0")
    assert running.loop_factory() is None


@pytest.mark.parametrize("chosen", [None, "3"])
def test_the_server_has_no_threads_for_matrices(chosen: str | None) -> None:
    """It is told before it imports NumPy; who chose a number has it."""
    code = (
        "import os, sys, types\nfrom envserver.options import Options\nfrom envserver.running import run\n"
        "async def serve(config):\n    print(os.environ['OPENBLAS_NUM_THREADS'])\n    return 0\n"
        "stub = types.ModuleType('envserver.server')\nstub.serve = serve\n"
        "sys.modules['envserver.server'] = stub\nrun(Options(env=('CartPole-v1',), embedded=True))\n"
        "print('numpy' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment |= {} if chosen is None else {"OPENBLAS_NUM_THREADS": chosen}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.split() == [chosen or "1", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies")
@pytest.mark.parametrize(("chosen", "kept"), [("OTHER", "BATCH"), ("IDLE", "IDLE")])
def test_a_policy_that_the_owner_chose_stays(chosen: str, kept: str) -> None:
    """Only the default becomes SCHED_BATCH: a server that was started under `chrt --idle` stays there."""
    code = (
        f"import os\nos.sched_setscheduler(0, os.SCHED_{chosen}, os.sched_param(0))\n"
        "from envserver.running import schedule_for_throughput\nschedule_for_throughput()\n"
        f"print(os.sched_getscheduler(0) == os.SCHED_{kept})"
    )
    if chosen == "OTHER" and os.sched_getscheduler(0) == os.SCHED_IDLE:
        pytest.skip("the tests run under SCHED_IDLE, from which nobody comes back without a privilege")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies")
def test_a_policy_that_is_denied_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids it."""
    asked: list[int] = []

    def denied(pid: int, policy: int, param: object) -> None:
        asked.append(policy)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", denied)
    running.schedule_for_throughput()
    assert asked == [os.SCHED_BATCH]
