"""`VectorDriver`: plays random actions on a `RemoteVectorEnv` by send and recv, on a thread of its own, with a ledger.

    async with VectorDriver(envs, seed=4) as driver:
        await driver.until(lambda: driver.lost_at)
        report = await driver.finish(server.journal)

It numbers transitions from what Gymnasium's arrays say (flags, `asyncrl/lost`, `final_obs`) and from nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import asyncrl
from asyncrl.errors import AsyncRLError
from asyncrl.wire.handshake import rebuilt_seed
from tests.rig import ledger_rules as rules
from tests.rig.ledger import Batch, Ledger
from tests.rig.ledger_audit import Loss, Report
from tests.rig.ledger_env import NUM_ACTIONS
from tests.rig.processes import until

Ints = npt.NDArray[np.int64]

LOST = "asyncrl/lost"


class VectorDriver:
    """See the module; `envs` has LedgerEnv, same-step autoreset, and `seed` as its own."""

    def __init__(self, envs: asyncrl.RemoteVectorEnv, seed: int) -> None:
        self.rows_of: Counter[int] = Counter()  # transitions, by lane
        self.lost_at: list[tuple[float, int]] = []  # (monotonic time, lane), at its first lost row
        self.back_at: list[tuple[float, int]] = []  # (monotonic time, lane), at the first row of a replacement
        self.lost_rows = 0
        self.ledger = Ledger(self._seed_of)
        self.failure: BaseException | None = None  # what ended the thread; `until` raises it
        self._envs = envs
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        lanes = envs.fleet.lanes
        self._lane_of = np.repeat([lane.index for lane in lanes], [lane.num_slots for lane in lanes])
        num = envs.num_envs
        self._obs = np.zeros((num, *envs.single_observation_space.shape), np.uint8)  # last seen
        self._actions = np.zeros(num, np.int64)
        self._keys = np.zeros((3, num), np.int64)  # incarnation, episode, t
        self._begun = np.zeros(num, np.bool_)
        self._away = np.zeros(num, np.bool_)
        self._acting = True
        self._thread = threading.Thread(target=self._run, name="vector-driver", daemon=True)

    def _seed_of(self, slot: int, incarnation: int) -> int:
        return rebuilt_seed(self._seed, slot, incarnation) if incarnation else self._seed + slot

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the environment, which ends a `recv` that waits. Cancellation leaves the thread to end by itself."""
        self._acting = False
        await asyncio.to_thread(self._envs.close)
        await asyncio.to_thread(self._thread.join, 20.0)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._play()
        except (AsyncRLError, AssertionError) as error:
            self.failure = error

    def _play(self) -> None:
        self._envs.async_reset(seed=self._seed)
        owed = set(range(self._envs.num_envs))
        while owed:
            step = self._envs.recv()
            ids: Ints = step[4]["env_id"]
            owed -= set(ids.tolist())
            self._book(ids, *step)
            if self._acting:
                self._actions[ids] = self._rng.integers(0, NUM_ACTIONS, len(ids))
                self._envs.send(self._actions[ids], ids)
                owed |= set(ids.tolist())

    def _book(self, ids: Ints, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> None:
        """One batch: arrays `[N]` of the slots `ids`, observations `[N, obs_bytes]`."""
        lost = infos.get(LOST, np.zeros(len(ids), np.bool_))
        ended = terminated | truncated
        assert truncated[lost].all()
        assert not terminated[lost].any()
        assert not rewards[lost].any()
        following = obs.copy()
        for row in np.flatnonzero(ended):
            following[row] = infos["final_obs"][row]
        np.testing.assert_array_equal(following[lost], self._obs[ids[lost]], "a lost row ends with what was seen last")
        self._lose(ids[lost], obs[lost])
        moved = ~lost & self._begun[ids]  # the rest answers the reset
        assert not self._away[ids[moved]].any(), "a transition before the replacement's first row"
        if moved.any():
            self._store(ids[moved], rewards[moved], following[moved], ended[moved])
        self._obs[ids], self._begun[ids] = obs, True

    def _store(self, slots: Ints, rewards: Any, following: Any, ended: Any) -> None:
        keys = np.concatenate([slots[None], self._keys[:, slots]])
        self.ledger.store(Batch(keys, self._actions[slots], rewards, self._obs[slots], following, ended))
        self._keys[1, slots] += ended
        self._keys[2, slots] = np.where(ended, 0, self._keys[2, slots] + 1)
        self.rows_of.update(self._lane_of[slots].tolist())

    def _lose(self, slots: Ints, obs: Any) -> None:
        """Rows that are no transitions: the last observation of what is gone, or the first of what replaces it."""
        if not len(slots):
            return
        now = time.monotonic()
        self.lost_rows += len(slots)
        replaced = (obs != self._obs[slots]).any(axis=1)
        gone = slots[~self._away[slots]]
        assert not replaced[~self._away[slots]].any(), "a replacement showed before its loss did"
        for slot in gone.tolist():
            # Its lane answered this send with the loss: one step was in flight, executed or not.
            self.ledger.losses.append(Loss(slot, int(self._keys[0, slot]), 1, "lost"))
        self._keys[0, gone] += 1
        self._keys[1, gone] += 1
        self._keys[2, gone] = 0
        self._away[gone] = True
        back = slots[replaced]
        first = rules.read_headers(obs[replaced])
        assert (first.t == 0).all()
        assert (first.action == rules.NO_ACTION).all(), "an action reached the replacement before it was seen"
        self._away[back] = False
        self.lost_at += [(now, int(lane)) for lane in np.unique(self._lane_of[gone])]
        self.back_at += [(now, int(lane)) for lane in np.unique(self._lane_of[back])]

    # ------------------------------------------------------------------ for tests

    async def until(self, condition: Any, within_s: float = 30.0, what: str = "") -> float:
        """Wait for a condition while the thread plays; seconds it took. What ended the thread is raised."""

        def reached() -> object:
            if self.failure is not None:
                raise self.failure
            return condition()

        return await until(reached, within_s, what)

    async def transitions(self, count: int, within_s: float = 30.0) -> None:
        """Wait until so many more transitions have been stored."""
        target = self.ledger.num_rows + count
        await self.until(lambda: self.ledger.num_rows >= target, within_s, f"{count} transitions")

    async def rate(self, lanes: list[int], seconds: float) -> float:
        """Transitions per second of these lanes, measured now."""
        began, before = time.monotonic(), sum(self.rows_of[lane] for lane in lanes)
        await asyncio.sleep(seconds)
        return (sum(self.rows_of[lane] for lane in lanes) - before) / (time.monotonic() - began)

    async def all_lanes_move(self, within_s: float = 20.0) -> float:
        """Wait until every lane has brought transitions after now."""
        before = Counter(self.rows_of)
        lanes = np.unique(self._lane_of).tolist()
        return await self.until(lambda: all(self.rows_of[lane] > before[lane] for lane in lanes), within_s, "all lanes")

    def lost_since(self, when: float) -> list[tuple[float, int]]:
        return [each for each in self.lost_at if each[0] >= when]

    def back_since(self, when: float) -> list[tuple[float, int]]:
        return [each for each in self.back_at if each[0] >= when]

    async def finish(self, journal: str) -> Report:
        """Stop acting, wait for every row that is owed, and audit."""
        self._acting = False
        await self.until(lambda: not self._thread.is_alive(), 15.0, "rows that are owed")
        return self.ledger.check(journal).raise_if_violated()
