"""A run can be repeated from its seed, in any process, and a failing one is reduced to the faults that matter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import Message
from asyncrl.wire.server_lane import ServerLane
from tests.rig.ledger import LaneLedger
from tests.rig.sim_faults import Fault
from tests.rig.sim_server import SimLedgerEnv
from tests.sim.replay import shrink
from tests.sim.test_seeds import resumed_without_loss
from tests.sim.world import World, WorldFailed, run_world

# Virtual time never waits: the limit is for machines that compute something else meanwhile.
pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]


@pytest.mark.parametrize("fifo", [False, True])
def test_the_same_seed_gives_the_same_trace(fifo: bool) -> None:
    """Every frame, fault and arrival, at its time and in its order."""
    for seed in (7, 8):
        first, second = (run_world(World(seed, steps=200, fifo=fifo)) for _ in range(2))
        assert first.trace == second.trace
        assert len(first.trace) > 400


def test_another_process_gives_the_same_trace() -> None:
    """Also where strings hash differently, by the command line that a failure prints."""
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.sim.replay", "7", "--steps", "200"]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
        digests.update(re.findall(r"trace ([0-9a-f]{16})", text))
    assert len(digests) == 1


def test_a_slow_machine_gives_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that raise again and again wait on the virtual clock, not on the real one."""
    world = World(3, tuple(Fault("env.raise", visit) for visit in range(20, 120, 4)), steps=60)
    quick = run_world(world).trace
    step = SimLedgerEnv.step

    def slowly(self: SimLedgerEnv, action: np.int64) -> Any:
        time.sleep(0.01)
        return step(self, action)

    monkeypatch.setattr(SimLedgerEnv, "step", slowly)
    assert run_world(world).trace == quick


def _twice_is_delivered(self: ClientLane, message: Message) -> Message | None:
    return message if message.seq and message.seq <= self.received else _client_reply(self, message)


def _twice_is_executed(self: ServerLane, message: Message) -> Message | None:
    again = 0 < message.seq <= self.received
    if again:
        self.received = message.seq - 1
        self.answered = min(self.answered, self.received)
    return _server_request(self, message)


def _cache_forgets(self: ServerLane, ack: int) -> None:
    self._cache.clear()


def _sends_nothing_again(self: ClientLane, resumed: object) -> list[bytes]:
    return []


_client_reply = ClientLane._reply
_server_request = ServerLane._request

BUGS = {
    "a reply that comes twice is delivered twice": (ClientLane, "_reply", _twice_is_delivered),
    "a request that comes twice is executed twice": (ServerLane, "_request", _twice_is_executed),
    "replies are not kept for a resume": (ServerLane, "_ack", _cache_forgets),
    "requests are not sent again after a resume": (ClientLane, "frames_after_resume", _sends_nothing_again),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_simulation_finds_a_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a promise of the lane protocol broken on purpose, streams that break cost rows."""
    owner, name, broken = BUGS[bug]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        resumed_without_loss(1)


def test_a_failure_names_its_seed_and_its_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failing run prints is what one has to type."""
    monkeypatch.setattr(LaneLedger, "lost", lambda self, cause: self._requests.clear())
    with pytest.raises(WorldFailed, match=r"(?s)seed 5: .*faults: lane.crash_after:40.*tests.sim.replay 5"):
        run_world(World(5, (Fault("lane.crash_after", 40),), steps=100))


def test_a_schedule_shrinks_to_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many faults, the one that the failure needs is left."""
    monkeypatch.setattr(LaneLedger, "lost", lambda self, cause: self._requests.clear())
    guilty = Fault("lane.crash_after", 40)
    noise = [Fault("lane.slow", visit) for visit in range(3, 30, 3)] + [Fault("s2c.twice", 40)]
    world = World(5, (*noise, guilty), steps=100)
    with pytest.raises(WorldFailed):
        run_world(world)
    assert shrink(world, [*noise, guilty]) == [guilty]
