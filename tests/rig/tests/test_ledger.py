"""The audit finds what it is there to find, and nothing where nothing is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, TERMINATED, TRUNCATED
from asyncrl.wire.step_rows import Rebuilt, StepRows, final_rows_of
from tests.rig import ledger_rules as rules
from tests.rig.ledger import LaneLedger, Ledger
from tests.rig.ledger_env import ENV_FAULTS, NUM_ACTIONS, LedgerEnv, LedgerFault, make

BASE_SEED = 700


def seed_of(slot: int, incarnation: int) -> int:
    return BASE_SEED + slot + 1000 * incarnation


class Slots:
    """B instances stepped in one process with same-step autoreset: the smallest faithful host."""

    def __init__(self, ledger: Ledger, num_slots: int, **kwargs: Any) -> None:
        self.journal = rules.Journal()
        self.kwargs = kwargs | {"journal": self.journal}
        self.envs = [make(**self.kwargs) for _ in range(num_slots)]
        self.lane: LaneLedger = ledger.lane(range(num_slots))
        self.rng = np.random.default_rng(5)
        self.lane.sent(None)
        obs = np.stack([env.reset(seed=seed_of(slot, 0))[0] for slot, env in enumerate(self.envs)])
        self.lane.arrived(StepRows([obs], np.zeros(num_slots), np.full(num_slots, FIRST | NO_TRANSITION, np.uint8)))

    def execute(self) -> StepRows:
        """One step of every slot, whose rows are not given to the ledger."""
        action = self.rng.integers(0, NUM_ACTIONS, len(self.envs))
        self.lane.sent(action)
        obs, rewards, flags, finals = [], [], [], []
        for env, taken in zip(self.envs, action, strict=True):
            seen, reward, terminated, truncated, _ = env.step(taken)
            flag = TERMINATED * terminated or TRUNCATED * truncated
            if flag:
                finals.append(seen)
                seen, flag = env.reset()[0], flag | FIRST
            obs.append(seen)
            rewards.append(reward)
            flags.append(flag)
        flag_array = np.array(flags, np.uint8)
        final_rows = final_rows_of(flag_array)
        return StepRows(
            [np.stack(obs)], np.array(rewards), flag_array, final_rows, [np.stack(finals)] if finals else []
        )

    def steps(self, count: int, change: Callable[[StepRows], None] = lambda rows: None, at: int = -1) -> None:
        for number in range(count):
            rows = self.execute()
            if number == at:
                change(rows)
            self.lane.arrived(rows)


def history(change: Callable[[StepRows], None] = lambda rows: None, at: int = 100) -> tuple[Ledger, Slots]:
    ledger = Ledger(seed_of)
    slots = Slots(ledger, 3)
    slots.steps(300, change, at)
    return ledger, slots


def test_audit_passes_a_faithful_history() -> None:
    """Nothing is reported where every row is what was executed; the numbers add up."""
    ledger, slots = history()
    report = ledger.check(slots.journal).raise_if_violated()
    assert (report.executed, report.stored, report.lost_in_flight, report.instances) == (900, 900, 0, 3)
    assert report.episodes > 30


def flip_obs(rows: StepRows) -> None:
    rows.obs[0][1, 40] ^= 1


def swap_slots(rows: StepRows) -> None:
    rows.obs[0][[0, 1]] = rows.obs[0][[1, 0]]


def change_reward(rows: StepRows) -> None:
    rows.rewards[2] += 1 / 1024


def lose_flag(rows: StepRows) -> None:
    rows.flags[0] |= NO_TRANSITION


@pytest.mark.parametrize(
    ("change", "invariant"),
    [(flip_obs, "I3: an observation is damaged"), (swap_slots, "I3: the row mixes"), (change_reward, "I5: the reward")],
)
def test_a_changed_row_is_found(change: Callable[[StepRows], None], invariant: str) -> None:
    """A bit of an observation, the order of the slots, the last digit of a reward: each has its line."""
    ledger, slots = history(change)
    report = ledger.check(slots.journal)
    assert invariant in str(report)
    with pytest.raises(AssertionError, match="VIOLATED"):
        report.raise_if_violated()


def test_a_swapped_action_is_found() -> None:
    """A reward that is stored with the action of another step breaks I5."""
    ledger = Ledger(seed_of)
    slots = Slots(ledger, 2)
    slots.steps(50)
    rows = slots.execute()
    slots.lane._requests[0] = np.array([1, 2], np.int64)
    slots.lane.arrived(rows)
    assert "I5: the next observation names another action" in str(ledger.check(slots.journal))


def test_a_row_that_vanished_is_found() -> None:
    """A row that the client skipped leaves a gap, and an executed step that nobody accounts for."""
    text = str(history(lose_flag)[0].check(history(lose_flag)[1].journal))
    assert "VIOLATED" in text
    ledger, slots = history(lose_flag)
    text = str(ledger.check(slots.journal))
    assert "I3: the observation has another t than its row" in text
    assert "I2" in text


def test_a_row_stored_twice_is_found() -> None:
    """The same reply given to the ledger twice breaks I1."""
    ledger = Ledger(seed_of)
    slots = Slots(ledger, 1, mean_length=500)
    slots.steps(10)
    ledger.store(ledger._batches[-1])
    assert "I1: stored twice" in str(ledger.check(slots.journal))


def test_a_row_that_nobody_executed_is_found() -> None:
    """Rows without a journal record are no rows."""
    ledger, slots = history()
    assert "I2: stored but never executed" in str(ledger.check(rules.Journal()))
    assert ledger.check(slots.journal).ok


def test_steps_in_flight_may_be_lost_if_the_loss_was_announced() -> None:
    """Executed steps without a reply are balanced by `lost`, up to their number and only at the end."""
    ledger = Ledger(seed_of)
    slots = Slots(ledger, 2)
    slots.steps(20)
    slots.execute()
    assert "vanished" in str(ledger.check(slots.journal))
    slots.lane.lost("crash(SIGKILL)")
    report = ledger.check(slots.journal).raise_if_violated()
    assert (report.executed, report.stored, report.lost_in_flight) == (42, 40, 2)


def test_more_lost_than_was_in_flight_is_found() -> None:
    """A loss of one step does not cover two."""
    ledger = Ledger(seed_of)
    slots = Slots(ledger, 1, mean_length=500)
    slots.steps(20)
    slots.execute()
    slots.lane._requests.clear()
    slots.execute()
    slots.lane.lost("crash(SIGKILL)")
    assert "2 executed steps vanished, 1 were in flight" in str(ledger.check(slots.journal))


def test_a_rebuilt_slot_continues_under_its_next_incarnation() -> None:
    """An instance that was replaced inside the lane starts a new series; reusing the number is found."""
    for incarnation, verdict in ((1, True), (0, False)):
        ledger = Ledger(seed_of)
        slots = Slots(ledger, 2)
        slots.steps(30)
        slots.envs[1] = make(**slots.kwargs)
        slots.lane.sent(np.zeros(2))
        first, reward, *_ = slots.envs[0].step(np.int64(0))
        rows = StepRows(
            [np.stack([first, slots.envs[1].reset(seed=seed_of(1, 1))[0]])],
            np.array([reward, 0.0]),
            np.array([0, CUT | FIRST | NO_TRANSITION], np.uint8),
            rebuilt=[Rebuilt(1, incarnation, "ENV_FAULT", "told to raise")],
        )
        slots.lane.arrived(rows)
        slots.steps(30)
        report = ledger.check(slots.journal)
        assert report.ok is verdict, str(report)


def test_scalar_and_array_rules_agree() -> None:
    """Rewards, headers and checksums are the same by Python integers and by arrays, for short and long observations."""
    rng = np.random.default_rng(0)
    for num_words in (5, 6, 8, 9, 13, 512):
        points = [(int(rng.integers(1 << 62)), int(rng.integers(99)), int(rng.integers(99))) for _ in range(50)]
        actions = [int(action) for action in rng.integers(-1, NUM_ACTIONS, 50)]
        obs = [rules.observe(7, *p, a, num_words) for p, a in zip(points, actions, strict=True)]
        headers = rules.read_headers(np.stack(obs))
        assert headers.intact.all()
        assert [
            (int(s), int(e), int(t)) for s, e, t in zip(headers.seed, headers.episode, headers.t, strict=True)
        ] == points
        assert headers.action.tolist() == actions
        by_array = rules.rewards_of(headers.seed, headers.episode, headers.t, headers.action)
        assert by_array.tolist() == [rules.reward_of(*p, a) for p, a in zip(points, actions, strict=True)]


def test_every_flipped_bit_of_an_observation_is_noticed() -> None:
    """No single bit of header, filler or checksum can change unnoticed."""
    obs = rules.observe(7, 8, 9, 10, 11, 12)
    flipped = np.repeat(obs[None], obs.size * 8, axis=0)
    bits = np.arange(obs.size * 8)
    flipped[bits, bits // 8] ^= (1 << (bits % 8)).astype(np.uint8)
    assert not rules.read_headers(flipped).intact.any()


def test_the_journal_survives_a_kill_and_refuses_damage(tmp_path: Path) -> None:
    """What was appended is in the file without a close; a changed byte raises."""
    path = tmp_path / "journal"
    env = make(journal=str(path))
    env.reset(seed=3)
    env.step(np.int64(5))
    records = rules.read_journal(path)
    assert [int(kind) for kind in records["kind"]] == [rules.RecordKind.RESET, rules.RecordKind.STEP]
    assert records["action"].tolist() == [-1, 5]
    data = bytearray(path.read_bytes())
    data[60] ^= 4
    with pytest.raises(ValueError, match="record 1 of the journal is damaged"):
        rules.parse_records(bytes(data))
    env.close()


def test_two_instances_of_one_seed_differ_only_in_their_nonce() -> None:
    """The same seed gives the same episode whoever plays it; the nonce tells who did."""
    left, right = make(), make()
    one, _ = left.reset(seed=11)
    two, _ = right.reset(seed=11)
    assert (one[8:-8] == two[8:-8]).all()
    assert not (one[:8] == two[:8]).all()


def test_flags_and_rates_fire_faults(tmp_path: Path) -> None:
    """A flag file fires once in one instance, `.always` every time, `@SEED` in its instance, a rate at its share."""
    flags = str(tmp_path)
    env, other = LedgerEnv(flags=flags, mean_length=10**6), LedgerEnv(flags=flags, mean_length=10**6)
    env.reset(seed=1)
    other.reset(seed=2)
    (tmp_path / "raise_step").touch()
    with pytest.raises(LedgerFault):
        env.step(np.int64(0))
    other.step(np.int64(0))
    (tmp_path / "raise_step@2").touch()
    env.step(np.int64(0))
    with pytest.raises(LedgerFault):
        other.step(np.int64(0))
    (tmp_path / "raise_ctor.always").touch()
    for _ in range(2):
        with pytest.raises(LedgerFault):
            LedgerEnv(flags=flags)
    rated = LedgerEnv(rates={"raise_step": 0.1}, mean_length=10**6)
    rated.reset(seed=4)
    raised = sum(_raises(rated) for _ in range(300))
    assert 5 <= raised <= 90
    with pytest.raises(ValueError, match="no such faults"):
        LedgerEnv(rates={"burn": 1.0})
    assert "segv" in ENV_FAULTS


def _raises(env: LedgerEnv) -> bool:
    try:
        env.step(np.int64(0))
    except LedgerFault:
        env.reset()
        return True
    return False


@pytest.mark.slow
def test_a_million_rows_are_audited_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The audit is array work: 10^6 rows cost seconds, not minutes (the bound is generous)."""
    ledger = Ledger()
    num_slots, count = 1000, 1000
    nonces, seeds = np.arange(num_slots) + 1, np.arange(num_slots) + 9
    records = np.zeros(num_slots * count, rules.RECORD)
    rows = np.zeros(num_slots * count, ledger.rows().dtype)
    for name, values in (
        ("slot", seeds),
        ("nonce", nonces),
        ("next_nonce", nonces),
        ("seed", seeds),
        ("next_seed", seeds),
    ):
        rows[name] = np.repeat(values, count)
    rows["t"] = rows["env_t"] = np.tile(np.arange(count), num_slots)
    rows["next_t"] = rows["t"] + 1
    rows["last_action"] = np.where(rows["t"] == 0, -1, 0)
    rows["reward"] = rules.rewards_of(rows["seed"], rows["episode"], rows["t"], rows["action"])
    rows["intact"] = True
    for name in ("nonce", "seed", "reward"):
        records[name] = rows[name]
    records["t"], records["kind"] = rows["next_t"], rules.RecordKind.STEP
    shuffled = np.random.default_rng(0).permutation(len(rows))
    ledger._folded.append(rows[shuffled])
    journal = rules.Journal()
    journal.records = lambda: records  # type: ignore[method-assign]
    began = time.perf_counter()
    assert ledger.check(journal).raise_if_violated().stored == 10**6
    with capsys.disabled():
        print(f"\n10^6 rows audited in {time.perf_counter() - began:.1f} s")
