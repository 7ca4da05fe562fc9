"""`RemoteSimulator`: a search's simulator on other machines, the lanes of fleets that were opened with `snapshots`.

    simulator = RemoteSimulator()
    async with simulator.rooted(lane, rows, [0, 1]) as roots:     # `rows`: what the lane's slots have shown last
        results = await search(roots, simulator, evaluate, config, rng)

A wave becomes one frame for each lane that has a part in it, all of them under way at once. States stay in the lane
where they were made. Roots are searched in their own lane, or, where there are simulation lanes, in whichever of those
has least to do: there the state of the root travels, signed, in the entries that begin with it.

Invariants: live slots are not touched (test_live_slots_go_on_as_if_nobody_had_searched); a search finds what it finds
on copies in this process (test_remote_and_local_searches_agree); nothing is left in any lane, however it ends
(test_no_snapshot_is_left_of_a_cancelled_search); a lost lane fails the expansions that it had, and no others: its
states are reached anew from what is left (test_a_lost_lane_fails_its_expansions); a lane whose store is full keeps no
more states, and the search goes on by longer ways (test_a_full_store_makes_the_ways_longer).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.snapshots import Outcomes, SimulateEntry
from asyncrl.client.snapshots import Rollout as RolloutTail
from asyncrl.errors import ConfigError, LaneLost
from asyncrl.records import Array
from asyncrl.search.expanding import Root
from asyncrl.search.held_states import HeldStates
from asyncrl.search.lane_actions import every_action, wire_actions
from asyncrl.search.simulator import SNAPSHOT_GONE, Expansion, Outcome, RngMode
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.snapshot_bodies import MAX_STEPS
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows

FRAME_BYTES: Final = 16 * 1024 * 1024  # of a frame's states, or of the observations in its reply
FRAME_ENTRIES: Final = 4096

LANE_LOST: Final = "lane_lost"
BAD_STATE: Final = "bad_state"  # one that came from elsewhere, and is not believed
_QUOTA: Final = "QUOTA"
_RNG: Final[dict[RngMode, pb.RngMode.ValueType]] = {
    "resample": pb.RESAMPLE,
    "frozen": pb.FROZEN,
    "open_loop": pb.OPEN_LOOP,
}


class _Task(NamedTuple):
    """One expansion, as it is asked of a lane."""

    number: int  # its place in the wave
    asked: Expansion
    parent: int  # a state that is there
    detour: int  # steps from there to the parent that was asked for, which is not
    keeps: bool


@dataclass
class RemoteCounts:
    """What was asked of lanes so far."""

    frames: int = 0
    entries: int = 0
    steps: int = 0  # of simulators, those of rollouts included; of an entry that failed as many as were asked of it
    lost: int = 0  # entries whose lane was lost
    unkept: int = 0  # states that found no room


class RemoteSimulator:
    """Of fleets that are open. With `simulation_lanes` those simulate, and the roots' own lanes only give states away.

    `wants_obs`: False where nobody looks at observations, which then do not travel. `reward` maps the rewards that the
    environments gave, f8 [N, K], to those that are searched with.
    """

    def __init__(
        self,
        simulation_lanes: Sequence[FleetLane] = (),
        *,
        wants_obs: bool = True,
        reward: Callable[[Array], Array] | None = None,
    ) -> None:
        self.counts = RemoteCounts()
        self._lanes = list(simulation_lanes)
        self._wants_obs, self._reward = wants_obs, reward
        self._held = HeldStates()
        self._full: set[FleetLane] = set()  # stores that had no room when they were asked last

    @property
    def num_states(self) -> int:
        """States that are held, in all lanes, and those that travel."""
        return len(self._held)

    # ------------------------------------------------------------------ roots

    @asynccontextmanager
    async def rooted(self, lane: FleetLane, rows: StepRows, which: Sequence[int]) -> AsyncIterator[list[Root]]:
        """Roots at these slots of a lane for as long as the block lasts. Raises as `take` does."""
        roots = await self.take(lane, rows.obs, which, mask=rows.mask, to_play=rows.to_play)
        try:
            yield roots
        finally:
            self.give_back(roots)

    async def take(
        self,
        lane: FleetLane,
        obs: Sequence[Array],
        which: Sequence[int],
        *,
        mask: Array | None = None,
        to_play: Array | None = None,
    ) -> list[Root]:
        """Roots at these slots of a lane, for `give_back`. The arrays, of [B] rows, are what they have shown last.

        Raises LaneLost, or ServerRefused where a slot has no state to hold, or may not give it away. Cancelled, it
        leaves no snapshot.
        """
        ids = await lane.snapshots.snapshot(which)
        signed: Sequence[bytes] = ()
        if self._lanes:
            try:
                signed = await lane.snapshots.export(ids)
            finally:
                lane.snapshots.forget(ids)
        names, client = self._held.root_names(len(ids)), lane.client_in_use()
        for number, name in enumerate(names):
            if signed:
                self._held.add_signed(name, signed[number])
            else:
                self._held.add(name, lane, ids[number], client)
        spec = lane.spec
        assert spec is not None
        everything = every_action(spec)
        return [
            Root(
                state=name,
                obs=[leaf[row] for leaf in obs],
                mask=everything if mask is None else mask[row],
                to_play=None if to_play is None else int(to_play[row]),
            )
            for name, row in zip(names, which, strict=True)
        ]

    def give_back(self, roots: Iterable[Root]) -> None:
        """Forget the states of these roots."""
        self._forget([root.state for root in roots if isinstance(root.state, int)])

    # ------------------------------------------------------------------ Simulator

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        """See `Simulator`. Raises ServerRefused or ConfigError for what no lane of this kind can do.

        Cancelled, it stops the wave in every lane; what they have kept by then is forgotten, or goes with `release`.
        """
        outcomes = [Outcome(SNAPSHOT_GONE)] * len(wave)
        parts = self._by_lane(wave)
        if len(parts) == 1:
            for lane, tasks in parts.items():
                await self._ask(lane, tasks, outcomes)
        elif parts:
            try:
                async with asyncio.TaskGroup() as group:
                    for lane, tasks in parts.items():
                        group.create_task(self._ask(lane, tasks, outcomes))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return outcomes

    async def release(self, states: Sequence[int]) -> None:
        """See `Simulator`. It does not wait for the lanes."""
        self._forget(states)

    # ------------------------------------------------------------------ which lane

    def _by_lane(self, wave: Sequence[Expansion]) -> dict[FleetLane, list[_Task]]:
        """Expansions that nothing is left to begin with are nobody's."""
        parts: dict[FleetLane, list[_Task]] = {}
        for number, asked in enumerate(wave):
            assert isinstance(asked.parent, int)
            begin = self._held.reach(asked.parent, asked.actions)
            if begin is None:
                continue
            lane = self._held.lane_of(begin.parent) or self._idlest(parts)
            keeps = asked.keep_as is not None and lane not in self._full
            asked = asked._replace(actions=begin.actions)
            parts.setdefault(lane, []).append(_Task(number, asked, begin.parent, begin.detour, keeps))
        return parts

    def _idlest(self, parts: dict[FleetLane, list[_Task]]) -> FleetLane:
        """The simulation lane with the least to do in this wave, then with the fewest states."""
        up = [lane for lane in self._lanes if lane.client_in_use() is not None] or self._lanes
        return min(up, key=lambda lane: (len(parts.get(lane, ())), self._held.num_in(lane)))

    # ------------------------------------------------------------------ one lane

    async def _ask(self, lane: FleetLane, tasks: list[_Task], outcomes: list[Outcome]) -> None:
        """Fill in this lane's outcomes. What the store has no room for is asked for again, without keeping it."""
        spec = lane.spec
        assert spec is not None
        left = tasks
        try:
            while left:
                again: list[_Task] = []
                for part in self._frames(left, spec):
                    again += await self._ask_frame(lane, spec, part, outcomes)
                left = again
        except LaneLost:
            for task in tasks:
                outcomes[task.number] = Outcome(LANE_LOST)
            self.counts.lost += len(tasks)

    def _frames(self, tasks: list[_Task], spec: LaneSpec) -> Iterator[list[_Task]]:
        """In order, each small enough for a frame."""
        frame: list[_Task] = []
        size, obs_bytes = 0, spec.observation.nbytes if self._wants_obs else 0
        for task in tasks:
            each = max(obs_bytes, self._held.num_bytes(task.parent))
            if frame and (size + each > FRAME_BYTES or len(frame) == FRAME_ENTRIES):
                yield frame
                frame, size = [], 0
            frame.append(task)
            size += each
        yield frame

    async def _ask_frame(
        self, lane: FleetLane, spec: LaneSpec, tasks: list[_Task], outcomes: list[Outcome]
    ) -> list[_Task]:
        """Those that failed for want of room."""
        client = lane.client_in_use()
        entries = [self._entry(task, lane, spec) for task in tasks]
        found = await lane.snapshots.simulate(entries)
        self.counts.frames += 1
        self.counts.entries += len(tasks)
        self.counts.steps += _steps_of(found, entries)
        rewards = found.rewards if self._reward is None else self._reward(found.rewards)
        again: list[_Task] = []
        for row, (task, entry) in enumerate(zip(tasks, entries, strict=True)):
            status, name = found.status[row], task.asked.keep_as
            if status.code == _QUOTA and task.keeps:
                self._full.add(lane)
                self.counts.unkept += 1
                again.append(task._replace(keeps=False))
            elif not status.ok:
                outcomes[task.number] = Outcome(status.code.lower())
            else:
                outcome = outcomes[task.number] = _outcome_of(found, row, rewards[row], task)
                if outcome.kept and name is not None and entry.keep_as is not None:
                    self._held.add(name, lane, entry.keep_as, client)
                    self._held.add_way(name, task.parent, task.asked.actions)
        return again

    def _entry(self, task: _Task, lane: FleetLane, spec: LaneSpec) -> SimulateEntry:
        asked, tail = task.asked, task.asked.rollout
        if tail is not None and tail.steps > MAX_STEPS:
            raise ConfigError(f"rollout_steps is {tail.steps}: an env server makes {MAX_STEPS} at most")
        return SimulateEntry(
            parent=self._held.reference(task.parent),
            actions=wire_actions(asked.actions, spec),
            keep_as=lane.snapshots.new_id() if task.keeps else None,
            rng=_RNG[asked.rng],
            seed=asked.seed,
            rollout=None if tail is None else RolloutTail(tail.steps, tail.discount, tail.seed),
            want_obs=self._wants_obs,
        )

    def _forget(self, names: Iterable[int]) -> None:
        self._full -= self._held.forget(names)


def _steps_of(found: Outcomes, entries: Sequence[SimulateEntry]) -> int:
    asked = np.array([len(entry.actions[0]) for entry in entries])
    return int(np.where(found.ok, found.steps + found.rollout_steps, asked).sum())


def _outcome_of(found: Outcomes, row: int, rewards: Array, task: _Task) -> Outcome:
    """Of a task that succeeded; `rewards` f8 [K]."""
    steps = int(found.steps[row])
    if task.detour and steps <= task.detour:
        return Outcome(SNAPSHOT_GONE)  # this time the episode ended on the way to where the state was
    last = int(found.flags[row, steps - 1]) if steps else 0
    return Outcome(
        obs=[leaf[row] for leaf in found.obs] if found.has_obs[row] else (),
        rewards=rewards[task.detour : steps].tolist(),
        terminated=bool(last & TERMINATED),
        truncated=bool(last & TRUNCATED),
        mask=None if found.mask is None else found.mask[row],
        to_play=None if found.to_play is None else int(found.to_play[row]),
        kept=task.keeps and not last,
        rollout_return=float(found.rollout_return[row]),
    )
