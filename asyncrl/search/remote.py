"""`RemoteSimulator`: a search's simulator on other machines, the lanes of fleets that were opened with `snapshots`.

    simulator = RemoteSimulator()
    async with simulator.rooted(lane, rows, [0, 1]) as roots:     # `rows`: what the lane's slots have shown last
        results = await search(roots, simulator, evaluate, config, rng)

A wave becomes one frame for each lane that has a part in it, all of them under way at once. States stay in the lane
where they were made. Roots are searched in their own lane, or, where there are simulation lanes, in whichever of those
has least to do: there the state of the root travels, signed, in the entries that begin with it.

Invariants: live slots are not touched (test_live_slots_go_on_as_if_nobody_had_searched); a search finds what it finds
on copies in this process (test_remote_and_local_searches_agree); nothing is left in any lane, however it ends
(test_no_snapshot_is_left_of_a_cancelled_search); a lost lane fails the expansions that it had, and no others
(test_a_lost_lane_fails_its_expansions); a lane whose store is full keeps no more states, and the search goes on by
longer ways (test_a_full_store_makes_the_ways_longer).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.snapshots import Outcomes, SimulateEntry
from asyncrl.client.snapshots import Rollout as RolloutTail
from asyncrl.errors import ConfigError, LaneLost
from asyncrl.records import Array
from asyncrl.search.expanding import Root
from asyncrl.search.simulator import Expansion, Outcome, RngMode
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows

FRAME_BYTES: Final = 16 * 1024 * 1024  # of a frame's states, or of the observations in its reply
FRAME_ENTRIES: Final = 4096

LANE_LOST: Final = "lane_lost"
SNAPSHOT_GONE: Final = "snapshot_gone"
_QUOTA: Final = "QUOTA"
_RNG: Final[dict[RngMode, pb.RngMode.ValueType]] = {
    "resample": pb.RESAMPLE,
    "frozen": pb.FROZEN,
    "open_loop": pb.OPEN_LOOP,
}


class _Place(NamedTuple):
    """Where a state is held."""

    lane: FleetLane
    id: int


@dataclass
class RemoteCounts:
    """What was asked of lanes so far."""

    frames: int = 0
    entries: int = 0
    lost: int = 0  # entries whose lane was lost
    unkept: int = 0  # states that found no room


@dataclass
class _Frame:
    """Expansions of one wave that go to one lane; `numbers` are their places in the wave."""

    lane: FleetLane
    numbers: list[int] = field(default_factory=list)


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
        self._places: dict[int, _Place] = {}  # by the name that the search gave; roots have names below 0
        self._signed: dict[int, bytes] = {}  # states of roots, where they travel
        self._num_roots = 0
        self._num_held: Counter[FleetLane] = Counter()
        self._full: set[FleetLane] = set()  # stores that had no room when they were asked last

    @property
    def num_states(self) -> int:
        """States that are held, in all lanes, and those that travel."""
        return len(self._places) + len(self._signed)

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
        names = range(-self._num_roots - 1, -self._num_roots - 1 - len(ids), -1)
        self._num_roots += len(ids)
        self._signed.update(zip(names, signed, strict=False))
        self._places.update({} if signed else {name: _Place(lane, id) for name, id in zip(names, ids, strict=True)})
        spec = lane.spec
        assert spec is not None
        everything = _everything(spec)
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
        names = [root.state for root in roots if isinstance(root.state, int)]
        for name in names:
            self._signed.pop(name, None)
        self._forget(names)

    # ------------------------------------------------------------------ Simulator

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        """See `Simulator`. Raises ServerRefused for what no lane of this kind can do.

        Cancelled, it stops the wave in every lane; what they have kept by then is forgotten, or goes with `release`.
        """
        outcomes = [Outcome(SNAPSHOT_GONE)] * len(wave)
        frames = self._frames(wave)
        if len(frames) == 1:
            await self._ask(frames[0], wave, outcomes)
        elif frames:
            try:
                async with asyncio.TaskGroup() as group:
                    for frame in frames:
                        group.create_task(self._ask(frame, wave, outcomes))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return outcomes

    async def release(self, states: Sequence[int]) -> None:
        """See `Simulator`. It does not wait for the lanes."""
        self._forget(states)

    # ------------------------------------------------------------------ which lane

    def _frames(self, wave: Sequence[Expansion]) -> list[_Frame]:
        """One a lane. Expansions whose parent is gone are in none."""
        frames: dict[FleetLane, _Frame] = {}
        for number, asked in enumerate(wave):
            if asked.parent in self._signed:
                lane = self._idlest(frames)
            elif isinstance(asked.parent, int) and asked.parent in self._places:
                lane = self._places[asked.parent].lane
            else:
                continue
            frames.setdefault(lane, _Frame(lane)).numbers.append(number)
        return list(frames.values())

    def _idlest(self, frames: dict[FleetLane, _Frame]) -> FleetLane:
        """The simulation lane with the least to do in this wave, then with the fewest states."""
        up = [lane for lane in self._lanes if lane.up] or self._lanes
        return min(up, key=lambda lane: (len(frames[lane].numbers) if lane in frames else 0, self._num_held[lane]))

    # ------------------------------------------------------------------ one lane

    async def _ask(self, frame: _Frame, wave: Sequence[Expansion], outcomes: list[Outcome]) -> None:
        """Fill in this lane's outcomes. What the store has no room for is asked for again, without keeping it."""
        lane = frame.lane
        spec = lane.spec
        assert spec is not None
        left = [(number, self._entry(wave[number], lane, spec)) for number in frame.numbers]
        try:
            while left:
                again: list[tuple[int, SimulateEntry]] = []
                for part in _parts(left, spec.observation.nbytes if self._wants_obs else 0):
                    again += await self._ask_part(lane, part, wave, outcomes)
                left = again
        except LaneLost:
            for number in frame.numbers:
                outcomes[number] = Outcome(LANE_LOST)
            self.counts.lost += len(frame.numbers)

    async def _ask_part(
        self, lane: FleetLane, part: list[tuple[int, SimulateEntry]], wave: Sequence[Expansion], outcomes: list[Outcome]
    ) -> list[tuple[int, SimulateEntry]]:
        """One frame; its entries that failed for want of room."""
        found = await lane.snapshots.simulate([entry for _, entry in part])
        self.counts.frames += 1
        self.counts.entries += len(part)
        rewards = found.rewards if self._reward is None else self._reward(found.rewards)
        again: list[tuple[int, SimulateEntry]] = []
        for row, (number, entry) in enumerate(part):
            status = found.status[row]
            if status.code == _QUOTA and entry.keep_as is not None:
                self._full.add(lane)
                self.counts.unkept += 1
                again.append((number, replace(entry, keep_as=None)))
                continue
            if not status.ok:
                outcomes[number] = Outcome(status.code.lower())
                continue
            outcome = outcomes[number] = _outcome_of(found, row, rewards[row], entry)
            name = wave[number].keep_as
            if outcome.kept and name is not None and entry.keep_as is not None:
                self._places[name] = _Place(lane, entry.keep_as)
                self._num_held[lane] += 1
        return again

    def _entry(self, asked: Expansion, lane: FleetLane, spec: LaneSpec) -> SimulateEntry:
        assert isinstance(asked.parent, int)
        place = self._places.get(asked.parent)
        keeps = asked.keep_as is not None and lane not in self._full
        tail = asked.rollout
        return SimulateEntry(
            parent=self._signed[asked.parent] if place is None else place.id,
            actions=_wire_actions(asked.actions, spec),
            keep_as=lane.snapshots.new_id() if keeps else None,
            rng=_RNG[asked.rng],
            seed=asked.seed,
            rollout=None if tail is None else RolloutTail(tail.steps, tail.discount, tail.seed),
            want_obs=self._wants_obs,
        )

    def _forget(self, names: Iterable[int]) -> None:
        by_lane: dict[FleetLane, list[int]] = {}
        for name in names:
            place = self._places.pop(name, None)
            if place is not None:
                by_lane.setdefault(place.lane, []).append(place.id)
                self._num_held[place.lane] -= name > 0
        for lane, ids in by_lane.items():
            self._full.discard(lane)
            lane.snapshots.forget(ids)


def check_support(lanes: Iterable[FleetLane], *, exports: bool = False) -> None:
    """ConfigError where the environments of these lanes have no states to hold; or, with `exports`, none to give away.

    The lanes have been opened.
    """
    for lane in lanes:
        why = "" if lane.opened is None else lane.opened.host_reason
        if lane.snapshots.support == "none":
            raise ConfigError(f"{lane.address} cannot look ahead in this environment: {why or 'it holds no states'}")
        if exports and not lane.snapshots.exports:
            raise ConfigError(
                f"states cannot leave or enter {lane.address}: give all env servers the same --snapshot-key-file"
            )


def num_actions(spec: LaneSpec) -> int:
    """How many actions there are; 0 where they cannot be enumerated."""
    nodes = spec.action.nodes
    return nodes[0].n if nodes[0].kind == pb.DISCRETE else 0


def first_action(spec: LaneSpec) -> int:
    """The environment's number of the action that is counted as 0."""
    return spec.action.nodes[0].start


def _everything(spec: LaneSpec) -> Array | None:
    """b1 [A]"""
    count = num_actions(spec)
    return np.ones(count, np.bool_) if count else None


def _wire_actions(actions: Sequence[Array], spec: LaneSpec) -> list[Array]:
    """Per leaf [k, *shape], in the environment's numbering and the dtypes of the wire."""
    leaves = spec.action.leaves
    if not actions:
        return [np.empty((0, *leaf.shape), leaf.dtype) for leaf in leaves]
    if num_actions(spec):
        return [(actions[0] + first_action(spec)).astype(leaves[0].dtype)]
    return [np.asarray(array).astype(leaf.dtype) for array, leaf in zip(actions, leaves, strict=True)]


def _outcome_of(found: Outcomes, row: int, rewards: Array, entry: SimulateEntry) -> Outcome:
    """Of one entry that succeeded; `rewards` f8 [K]."""
    steps = int(found.steps[row])
    last = int(found.flags[row, steps - 1]) if steps else 0
    return Outcome(
        obs=[leaf[row] for leaf in found.obs] if found.has_obs[row] else (),
        rewards=rewards[:steps].tolist(),
        terminated=bool(last & TERMINATED),
        truncated=bool(last & TRUNCATED),
        mask=None if found.mask is None else found.mask[row],
        to_play=None if found.to_play is None else int(found.to_play[row]),
        kept=entry.keep_as is not None and not last,
        rollout_return=float(found.rollout_return[row]),
    )


def _parts(left: list[tuple[int, SimulateEntry]], obs_bytes: int) -> Iterator[list[tuple[int, SimulateEntry]]]:
    """In order, each small enough for a frame."""
    part: list[tuple[int, SimulateEntry]] = []
    size = 0
    for number, entry in left:
        each = max(obs_bytes, len(entry.parent) if isinstance(entry.parent, bytes) else 0)
        if part and (size + each > FRAME_BYTES or len(part) == FRAME_ENTRIES):
            yield part
            part, size = [], 0
        part.append((number, entry))
        size += each
    if part:
        yield part
