"""Seeds of the simulation: every run conserves, pairs and orders its rows, converges after its faults, and gives back.

ASYNCRL_SIM_SEEDS says how many (the nightly run: 20000), ASYNCRL_SIM_FIRST where they start.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.rig.sim_faults import SITES, Fault
from tests.sim.world import Outcome, World, WorldFailed, run_world

# Virtual time never waits: the limit is for machines that compute something else meanwhile.
pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]

NUM_SEEDS = int(os.environ.get("ASYNCRL_SIM_SEEDS", "50"))
FIRST_SEED = int(os.environ.get("ASYNCRL_SIM_FIRST", "0"))
BATCH = 10  # seeds of one test: enough to spread over processes, few enough to end soon


def _run(seeds: range) -> list[Outcome]:
    """All of them; the failures of all of them in one report."""
    outcomes, failures = [], []
    for seed in seeds:
        try:
            outcomes.append(run_world(World(seed)))
        except WorldFailed as failed:
            failures.append(str(failed))
    assert not failures, "\n\n".join(failures)
    return outcomes


def resumed_without_loss(seed: int) -> int:
    """A run whose streams break again and again; raises if that cost anything, else says how many were resumed."""
    breaks = [Fault("s2c.cut", visit) for visit in range(30, 400, 31)]
    breaks += [Fault("c2s.cut", visit) for visit in range(50, 400, 47)]
    breaks += [Fault("s2c.half", visit) for visit in range(70, 400, 83)]
    repeats = [Fault(f"{way}.twice", visit) for way in ("s2c", "c2s") for visit in range(20, 400, 5)]
    outcome = run_world(World(seed, (*breaks, *repeats), resumable=True, calm_end=True, steps=300))
    assert outcome.faults.get("lane_lost", 0) == outcome.report.lost_in_flight == 0, str(outcome.faults)
    return outcome.faults.get("stream_resumed", 0)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + NUM_SEEDS, BATCH))
def test_every_seed_keeps_the_promises(first: int) -> None:
    """Exactly once, conservation, no mixing, pairing; convergence within 60 s; all given back within 45 s."""
    outcomes = _run(range(first, min(first + BATCH, FIRST_SEED + NUM_SEEDS)))
    assert all(outcome.report.stored >= 100 for outcome in outcomes)
    assert sum(len(outcome.hits) for outcome in outcomes) > 0


def test_a_run_without_faults_loses_nothing() -> None:
    """With an empty schedule nothing is lost, dropped, resumed or rebuilt."""
    for seed in range(5):
        outcome = run_world(World(seed, only=(), calm_end=True))
        assert outcome.faults == {}
        assert outcome.duplicates == outcome.report.lost_in_flight == 0


@pytest.mark.parametrize("seed", range(8))
def test_broken_streams_of_resumable_lanes_lose_nothing(seed: int) -> None:
    """Twenty breaks a run, some of which the server notices late, and frames that come twice: 0 lost, 0 twice."""
    assert resumed_without_loss(seed) >= 10


def test_the_schedule_of_a_run_replays_it() -> None:
    """A run from its own list of faults has the same events as the run that drew them."""
    for seed in (3, 4, 5):
        drawn = run_world(World(seed, steps=150))
        assert run_world(World(seed, tuple(drawn.hits), steps=150)).trace == drawn.trace


def test_every_fault_site_is_visited_and_hit() -> None:
    """A site that no run reaches would be a fault that nobody tests."""
    hit = Counter[str]()
    for seed in range(1000, 1040):
        hit.update(fault.site for fault in run_world(World(seed, steps=150)).hits)
        if set(SITES) <= set(hit):
            break
    assert set(SITES) <= set(hit), f"never hit: {set(SITES) - set(hit)}"
