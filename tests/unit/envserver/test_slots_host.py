"""The loop over single environments against SyncVectorEnv, and against environments that break."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, TERMINATED, RowState
from asyncrl.wire.handshake import rebuilt_seed
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.step_rows import StepRows
from envserver.host import LaneWish
from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from envserver.slots_host import SlotsHost
from tests.unit.envserver import zoo
from tests.unit.envserver.driving import RESET_ALL, Driver, SideBySide, build, seeds, sync

MODES = [pb.SAME_STEP, pb.NEXT_STEP, pb.DISABLED]
TAXI = f'taxi={"Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"}{{"max_episode_steps":11}}'
ALE = 'pong=ALE/Pong-v5{"preprocess":false,"obs_type":"ram","max_episode_steps":13}'


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def scripted(faults: dict[str, str], num_slots: int = 2, **wants: Any) -> tuple[Driver, Clock]:
    """A lane of scripted environments on a clock of its own."""
    zoo.ScriptedEnv.built = 0
    alias = parse_env_option(zoo.options("scripted", "scripted"))
    alias.kwargs["faults"] = faults
    clock = Clock()
    wish = LaneWish("scripted", num_slots=num_slots, run_seed=9, fleet_slots=range(10, 10 + num_slots), **wants)
    host = SlotsHost(Recipe(alias, {}), wish, lambda *_: None, clock=clock, sleep=clock.sleep)
    return Driver(host, num_slots), clock


def step_often(driver: Driver) -> None:
    for _ in range(1000):
        driver.step()


def column(rows: StepRows, key: str) -> dict[int, Any]:
    return {
        int(row): value
        for found in rows.infos
        if found.key == key
        for row, value in zip(found.rows, found.data, strict=True)
    }


# -------------------------------------------------------------------------------------------------- as Gymnasium does


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("option", "steps"),
    [
        ("CartPole-v1", 150),
        ('pendulum=Pendulum-v1{"max_episode_steps":9}', 60),
        ("Blackjack-v1", 40),
        (TAXI, 60),
        (zoo.options("mixed", "mixed"), 40),
        (ALE, 40),
    ],
)
def test_slots_step_as_gymnasium_does(option: str, steps: int, mode: pb.Autoreset.ValueType) -> None:
    """Observations, rewards, ends, finals, masks and infos are those of SyncVectorEnv, seed for seed."""
    both = SideBySide(build(option, 3, host=pb.SLOTS, autoreset=mode), sync(option, 3, mode), 3)
    both.reset(41)
    for _ in range(steps):
        both.step()
    both.reset(7)
    both.step()
    assert both.episodes > 3
    both.env.close()
    both.driver.host.close()


def test_seeds_are_per_slot() -> None:
    """A row's seed decides its observation whatever the other rows get, and None leaves its generator running."""
    driver = Driver(build("CartPole-v1", 3), 3)
    first = driver.reset(ResetRequest(None, [5, 6, 5], None)).obs[0]
    again = driver.reset(ResetRequest(None, [9, None, 5], None)).obs[0]
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[2], again[2])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], again[1])


def test_rows_outside_a_reset_mask_keep_their_observation() -> None:
    """A masked reset restarts its rows alone, in the middle of their episodes too."""
    driver = Driver(build(zoo.options("masked", "masked"), 3), 3)
    driver.reset()
    before = driver.step()
    after = driver.reset(ResetRequest(np.array([False, True, False]), None, None))
    assert after.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION, NO_TRANSITION]
    assert after.obs[0].tolist() == [1, 0, 1]
    assert before.mask is not None
    assert after.mask is not None
    np.testing.assert_array_equal(after.mask[[0, 2]], before.mask[[0, 2]])
    assert driver.step().obs[0].tolist() == [2, 1, 2]


def test_rows_that_were_never_reset_wait() -> None:
    """A step before the first reset moves nothing; a masked first reset starts its rows alone."""
    driver = Driver(build("CartPole-v1", 2), 2)
    assert driver.step().flags.tolist() == [NO_TRANSITION] * 2
    driver.reset(ResetRequest(np.array([True, False]), [3, 3], None))
    assert driver.step().flags.tolist() == [0, NO_TRANSITION]


def test_options_reach_every_environment() -> None:
    """Each environment gets the reset options, although another one takes entries out of its own."""
    driver = Driver(build(zoo.options("mixed", "mixed"), 2), 2)
    given = {"start": 3}
    rows = driver.reset(ResetRequest(None, None, given))
    assert column(rows, "t") == {0: 3, 1: 3}
    assert given == {"start": 3}


def test_masks_and_players_are_leaves_and_no_infos() -> None:
    """action_mask and to_play travel as arrays of their own, final masks beside the final observations."""
    driver = Driver(build(zoo.options("masked", "masked"), 2), 2)
    rows = driver.reset()
    for t in range(1, 5):
        assert rows.mask is not None
        assert rows.to_play is not None
        expected = [bool((t - 1) % 2), True, False]
        assert rows.mask.tolist() == [expected] * 2
        assert rows.to_play.tolist() == [(t - 1) % 2] * 2
        assert not rows.infos
        rows = driver.step()
    assert rows.final_mask is not None
    assert rows.final_mask.tolist() == [[False, True, False]] * 2
    assert not rows.final_infos
    assert rows.infos_dropped == 0


def test_a_first_observation_without_a_mask_allows_everything() -> None:
    """The mask of the old episode does not outlive it."""
    driver = Driver(build(zoo.options("masked", "masked", '{"at_reset":false}'), 2), 2)
    driver.reset()
    driver.step()
    rows = driver.reset(ResetRequest(np.array([True, False]), None, None))
    assert rows.mask is not None
    assert rows.mask.tolist() == [[True] * 3, [True, True, False]]


def test_the_mask_of_several_choices_is_joined() -> None:
    """MultiDiscrete takes its mask as a tuple, one array per choice; on the wire it is one row."""
    driver = Driver(build(zoo.options("masked", "masked", '{"multi":true}'), 1), 1)
    rows = driver.reset()
    assert driver.host.spec.mask_size == 5
    assert rows.mask is not None
    assert rows.mask.tolist() == [[True, False, False, True, False]]


def test_a_mask_of_a_wrong_width_is_a_fault() -> None:
    """A mask that does not fit must not become one that allows everything."""
    driver = Driver(build(zoo.options("masked", "masked", '{"width":2}'), 1), 1)
    rows = driver.reset()
    assert rows.flags.tolist() == [NO_TRANSITION]


def test_statistics_are_those_of_whole_games() -> None:
    """Return and length of each ended game, counted over its transitions only."""
    for mode in MODES:
        driver = Driver(build(zoo.options("mixed", "mixed"), 2, autoreset=mode), 2)
        driver.reset(ResetRequest(np.array([True, False]), None, None))
        driver.step()
        driver.reset(ResetRequest(np.array([False, True]), None, None))
        seen = []
        for _ in range(8):
            stats = driver.step().stats
            if stats is not None:
                seen += list(zip(stats.rows, stats.returns, stats.lengths, strict=True))
        assert seen[:2] == [(0, 28.0, 7), (1, 28.0, 7)], mode


def test_rendering_gives_images_of_the_asked_rows() -> None:
    """u1 images with a channel axis; a lane that was opened without render refuses."""
    host = build('pong=ALE/Pong-v5{"noop_max":0}', 2, host=pb.SLOTS, render=True)
    host.reset(RESET_ALL)
    (image,) = host.render([1])
    assert image.shape == (210, 160, 3)
    assert image.dtype == np.uint8
    assert image.any()
    with pytest.raises(ServerRefused, match="without render"):
        build("CartPole-v1", 1).render([0])


# ---------------------------------------------------------------------------------------------------------- faults


def test_an_exception_in_step_costs_its_slot_alone() -> None:
    """The slot's episode is cut and a new environment begins in the same reply; its neighbour moves on."""
    driver, _ = scripted({"step:1:2": "raise"})
    driver.reset(seeds(0, 2))
    driver.step()
    driver.step()
    rows = driver.step()
    assert rows.flags.tolist() == [0, CUT | FIRST | NO_TRANSITION]
    assert rows.rewards.tolist() == [1.0, 0.0]
    assert rows.obs[0].tolist() == [[0.0, 3.0], [2.0, 0.0]]
    (rebuilt,) = rows.rebuilt
    assert (rebuilt.row, rebuilt.incarnation, rebuilt.code) == (1, 1, "ENV_FAULT")
    assert "step raised RuntimeError: step fails as scripted" in rebuilt.text
    assert "secret" not in rebuilt.text
    assert column(rows, "seed") == {1: rebuilt_seed(9, 11, 1)}
    assert driver.step().flags.tolist() == [0, 0]


@pytest.mark.parametrize("bad", ["shape", "dtype", "complex", "none", "ragged", "reward", "no reward"])
@pytest.mark.parametrize("mode", MODES)
def test_a_value_outside_the_space_is_a_fault(bad: str, mode: pb.Autoreset.ValueType) -> None:
    """What the environment returned never reaches the wire, in whichever step it came."""
    for step in (1, 4):  # 4 ends the episode
        driver, _ = scripted({f"step:1:{step}": bad}, autoreset=mode)
        driver.reset()
        for _ in range(step):
            driver.step()
        rows = driver.step()
        assert rows.flags[1] == CUT | FIRST | NO_TRANSITION
        assert rows.flags[0] & NO_TRANSITION == 0
        assert rows.obs[0][1].tolist() == [2.0, 0.0]


@pytest.mark.parametrize("bad", ["complex reward", "info", "tuple", "ends"])
def test_malformed_returns_are_faults(bad: str) -> None:
    """Too few values, infos that are no dict and ends that are no truth values."""
    driver, _ = scripted({"step:0:1": bad}, num_slots=1)
    driver.reset()
    driver.step()
    assert driver.step().flags.tolist() == [CUT | FIRST | NO_TRANSITION]


@pytest.mark.parametrize("bad", ["nan", "inf obs"])
def test_numbers_that_are_not_finite_pass(bad: str) -> None:
    """NaN and infinity are numbers: what to do about them is the learner's decision."""
    driver, _ = scripted({"step:0:0": bad}, num_slots=1)
    driver.reset()
    rows = driver.step()
    assert rows.flags.tolist() == [0]
    assert not np.isfinite([*rows.rewards, *rows.obs[0][0]]).all()


def test_a_reset_that_fails_after_an_end_keeps_the_transition() -> None:
    """Same-step autoreset: the end arrives with its last observation, the rebuilt slot one step later."""
    driver, _ = scripted({"reset:0:1": "raise"})
    driver.reset()
    for _ in range(4):
        driver.step()
    rows = driver.step()
    assert rows.flags.tolist() == [TERMINATED, TERMINATED | FIRST]
    assert rows.obs[0][0].tolist() == [0.0, 5.0]
    assert rows.final_rows.tolist() == [1]
    assert rows.final_obs[0].tolist() == [[1.0, 5.0]]
    assert rows.stats is not None
    assert rows.stats.returns.tolist() == [5.0, 5.0]
    rows = driver.step()
    assert rows.flags.tolist() == [FIRST | NO_TRANSITION, 0]
    assert [rebuilt.row for rebuilt in rows.rebuilt] == [0]


def test_a_slot_that_cannot_be_built_joins_later() -> None:
    """One constructor that fails leaves a lane with the others; the slot is born when it succeeds."""
    driver, clock = scripted({"build:0": "raise", "build:2": "raise"})
    rows = driver.reset()
    assert rows.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION]
    assert driver.step().flags.tolist() == [NO_TRANSITION, 0]
    clock.now += 0.11
    rows = driver.step()
    assert rows.flags.tolist() == [FIRST | NO_TRANSITION, 0]
    assert (rows.rebuilt[0].row, rows.rebuilt[0].incarnation) == (0, 2)
    assert column(rows, "seed")[0] == rebuilt_seed(9, 10, 2)


def test_a_lane_that_cannot_be_built_is_refused() -> None:
    """If every constructor fails, the client gets the reason and no paths."""
    with pytest.raises(ServerRefused, match=r"BUILD_FAILED.*build fails as scripted in \.\.\./place\.cfg"):
        scripted({"build:*": "raise"})


def test_a_long_life_is_counted_once() -> None:
    """After an accident in a long life the count begins anew: what breaks at once again has to wait."""
    driver, _ = scripted({"step:0:150": "raise", "step:1:0": "raise", "step:2:0": "raise"}, num_slots=1)
    driver.reset()
    for _ in range(150):
        driver.step()
    assert [driver.step().flags[0] for _ in range(3)] == [
        CUT | FIRST | NO_TRANSITION,
        CUT | FIRST | NO_TRANSITION,
        CUT | NO_TRANSITION,
    ]


def test_broken_slots_wait_without_a_busy_loop() -> None:
    """While nothing can move the lane sleeps; with all slots in quarantine it says so, and when to come back."""
    driver, clock = scripted({"step:*:*": "raise", "reset:*:1": "raise"}, num_slots=2)
    driver.reset()
    built = zoo.ScriptedEnv.built
    rows = driver.step()
    assert rows.flags.tolist() == [CUT | FIRST | NO_TRANSITION] * 2
    with pytest.raises(ServerRefused, match=r"QUARANTINED.*step fails as scripted") as refused:
        step_often(driver)
    assert refused.value.retryable
    assert refused.value.retry_after_s > 20
    assert zoo.ScriptedEnv.built - built < 20
    assert sum(clock.slept) > 0.1
    clock.now += refused.value.retry_after_s
    assert driver.step().flags.tolist() == [FIRST | NO_TRANSITION] * 2


def test_a_quarantined_slot_leaves_its_neighbours_alone() -> None:
    """A lane with one hopeless slot never sleeps and never refuses; the row just waits."""
    faults = {f"step:{number}:*": "raise" for number in (1, 2, 3, 4, 5, 6, 7)}
    driver, clock = scripted(faults)
    driver.reset()
    for _ in range(100):
        rows = driver.step()
        assert rows.flags[0] & NO_TRANSITION == 0
        clock.now += 0.05
    assert rows.flags[1] == NO_TRANSITION
    assert not clock.slept
    assert zoo.ScriptedEnv.built < 8


def test_the_same_faults_give_the_same_rows() -> None:
    """Incarnations and their seeds make a faulty run repeatable."""

    def run() -> list[bytes]:
        faults = {"step:0:7": "raise", "reset:1:2": "raise", "step:3:1": "shape"}
        driver, _ = scripted(faults, incarnations=[3, 4])
        found = [driver.reset(seeds(1, 2))] + [driver.step() for _ in range(40)]
        return [rows.flags.tobytes() + rows.obs[0].tobytes() + repr(rows.infos).encode() for rows in found]

    assert run() == run()


@pytest.mark.parametrize("mode", MODES)
def test_faulty_environments_keep_to_the_row_table(mode: pb.Autoreset.ValueType) -> None:
    """Random schedules of faults in constructor, reset and step, with masked resets between."""
    rng = np.random.default_rng(17)
    kinds = ["raise", "shape", "reward", "tuple"]
    rebuilds = 0
    for _ in range(30):
        faults = {f"step:{rng.integers(12)}:{rng.integers(9)}": str(rng.choice(kinds)) for _ in range(12)}
        faults |= {f"reset:{rng.integers(12)}:{rng.integers(3)}": "raise" for _ in range(5)}
        faults |= {f"build:{rng.integers(3, 12)}": "raise" for _ in range(3)}
        driver, clock = scripted(faults, num_slots=3, autoreset=mode)
        driver.reset()
        for _ in range(40):
            clock.now += rng.uniform(0, 0.2)
            if rng.random() < 0.2:
                rows = driver.reset(ResetRequest(rng.random(3) < 0.5, None, None))
            else:
                rows = driver.step()
            rebuilds += len(rows.rebuilt)
            moved = (rows.flags & NO_TRANSITION) == 0
            assert (rows.rewards == moved).all()
            assert (driver.tracker.state[rows.flags & FIRST > 0] == RowState.RUNNING).all()
    assert rebuilds > 30


def test_adopted_fleet_slots_decide_the_seeds_of_rebuilt_slots() -> None:
    """A prepared host takes over the numbering of the client that opens it."""
    driver, _ = scripted({"step:0:0": "raise"}, num_slots=1)
    driver.host.adopt(LaneWish("scripted", num_slots=1, fleet_slots=[77], incarnations=[5], run_seed=4))
    driver.reset()
    rows = driver.step()
    assert rows.rebuilt[0].incarnation == 6
    assert column(rows, "seed") == {0: rebuilt_seed(4, 77, 6)}


def test_a_lane_without_slots_has_a_spec() -> None:
    """A simulation lane steps nothing, yet says what its environments look like."""
    driver = Driver(build("CartPole-v1", 0), 0)
    assert driver.host.spec.observation.leaves[0].shape == (4,)
    assert driver.reset().flags.shape == (0,)
    assert driver.step().flags.shape == (0,)


def test_progress_counts_the_environments() -> None:
    """Every environment is reported as it is built, in order."""
    seen: list[tuple[int, int]] = []
    recipe = Recipe(parse_env_option("CartPole-v1"), {})
    SlotsHost(recipe, LaneWish("CartPole-v1", num_slots=3), lambda step, total: seen.append((step, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
