"""Snapshots of a lane's slots, and looking ahead from them: what a search asks of a lane.

    snapshots = fleet.lanes[0].snapshots
    (root,) = await snapshots.snapshot([0])
    children = [snapshots.new_id() for _ in range(2)]
    entries = [SimulateEntry(root, [np.array([a])], keep_as=child) for a, child in enumerate(children)]
    outcomes = await snapshots.simulate(entries)
    snapshots.forget([root, *children])

Ids are never used twice, not even by the lane that replaces a lost one: a state of the lost lane is GONE there, never
another one's.

Invariants: what a request left behind that its caller no longer waits for is released
(test_a_cancelled_wave_leaves_no_snapshot); at most as many requests are under way as the lane allows
(test_requests_wait_for_their_turn), and none of them takes the last place, which is for a step
(test_a_place_is_left_for_a_step, test_what_is_forgotten_gathers_until_there_are_places).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from asyncrl.client.known_stacks import KnownStacks
from asyncrl.client.lane_client import LaneClient
from asyncrl.client.refusals import lane_lost
from asyncrl.errors import EnvFault, LocalProtocolError, ServerRefused
from asyncrl.wire import snapshot_bodies as bodies
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import SMALL_BODY_BYTES, parse_body
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.outcomes import Frames, Outcomes, decode_outcomes
from asyncrl.wire.snapshot_bodies import Earlier, Rollout, SimulateEntry, Status
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

__all__ = ["Earlier", "LaneSnapshots", "Outcomes", "Rollout", "SimulateEntry", "Status"]

# Requests of these kinds that a lane has under way at once, where it allows more than that.
MAX_WAVES: Final = 2
# Of an outcome, besides its arrays: what is said of a failure is 2 KiB at most.
_OUTCOME_BYTES: Final = 4096


class SnapshotOwner(Protocol):
    """The lane, as its snapshots see it."""

    spec: LaneSpec | None
    opened: pb.Opened | None
    tracker: RowTracker
    next_incarnation: Array

    def client_in_use(self) -> LaneClient | None: ...


class LaneSnapshots:
    """Of one `FleetLane`, whichever lane serves it."""

    def __init__(self, owner: SnapshotOwner) -> None:
        self.store_bytes = 0  # held by the lane after its last reply
        self._owner = owner
        self._ids = itertools.count(1)
        self._turn = asyncio.Semaphore(MAX_WAVES)
        self._forgotten: list[int] = []  # for a request of their own there was no place yet
        self._forgotten_by: LaneClient | None = None
        self._stacks = KnownStacks()
        self._stacks_of: LaneClient | None = None

    @property
    def support(self) -> str:
        """`none`, `probed` or `exact`: what the lane that serves now can do."""
        opened = self._owner.opened
        support = pb.SNAPSHOT_NONE if opened is None else opened.snapshot_support
        return pb.SnapshotSupport.Name(support).removeprefix("SNAPSHOT_").lower()

    @property
    def exports(self) -> bool:
        """Whether states may leave this lane, and those of others with the same key be taken in."""
        return self._owner.opened is not None and pb.EXPORTS in self._owner.opened.features

    def new_id(self) -> int:
        """An id that no snapshot of this lane ever had."""
        return next(self._ids)

    # ------------------------------------------------------------------ requests

    async def snapshot(self, rows: Sequence[int]) -> list[int]:
        """Hold the states of these slots; their ids.

        Raises LaneLost, or ServerRefused if any of the slots has no state to hold; none is held then. Cancellation
        leaves no snapshot.
        """
        ids = [self.new_id() for _ in rows]
        body = pb.Snapshot(rows=rows, ids=ids).SerializeToString()
        async with self._keeping(ids) as client:
            self._take(await client.ask(pb.SNAPSHOT, body), ids)
        return ids

    async def simulate(self, entries: Sequence[SimulateEntry], deadline_s: float | None = None) -> Outcomes:
        """One wave: every entry has its outcome, or a status that says why not.

        After `deadline_s` (servers grant 600 at most) the entries that were not reached, and the one that was being
        computed, have the status DEADLINE. Raises LaneLost, with which every entry and all snapshots are lost, or
        LocalProtocolError for what does not fit. Cancellation stops the wave at the server and leaves none of its
        snapshots.
        """
        spec = self._spec()
        before: list[Frames | None] | None = None
        if self._stacked(spec):
            entries, before = self._stacks.asked(entries)
        body = bodies.encode_simulate(entries, spec)
        _check_size(body, "a wave")
        asked = [len(entry.actions[0]) if entry.actions else 0 for entry in entries]
        each = spec.observation.nbytes + spec.mask_size + _OUTCOME_BYTES
        async with self._keeping([entry.keep_as for entry in entries if entry.keep_as is not None]) as client:
            reply = await client.ask(
                pb.SIMULATE, body, SMALL_BODY_BYTES + each * len(entries) + 9 * sum(asked), deadline_s
            )
            outcomes = decode_outcomes(reply, spec, asked, before)
        if before is not None:
            self._learn(client, entries, outcomes)
        self.store_bytes = outcomes.store_bytes
        return outcomes

    async def restore(self, row: int, snapshot_id: int) -> None:
        """Put a slot where a snapshot was taken: a new episode, whose first row comes as an arrival of the lane.

        Raises ServerRefused: STALE if the slot has moved meanwhile, SNAPSHOT_GONE, UNSUPPORTED; the slot is where it
        was then. Cancellation leaves open whether it is executed; the arrival tells.
        """
        owner = self._owner
        request = pb.Restore(
            row=row,
            id=snapshot_id,
            expect_incarnation=int(owner.next_incarnation[row]),
            expect_t=int(owner.tracker.t[row]),
        )
        async with self._keeping(()) as client:
            await client.ask(pb.RESTORE, request.SerializeToString())

    async def release(self, ids: Iterable[int]) -> int:
        """Give snapshots back; how many of them there were. Cancellation leaves them released."""
        ids = list(ids)
        self._stacks.forget(ids)
        body = pb.Release(ids=ids).SerializeToString()
        async with self._keeping(()) as client:
            reply = parse_body(pb.Released, await client.ask(pb.RELEASE, body))
        self.store_bytes = reply.store_bytes
        return reply.released

    def forget(self, ids: Iterable[int]) -> None:
        """Give snapshots back without waiting: now, or after a reply that leaves places for this and for a step."""
        client = self._owner.client_in_use()
        if client is not self._forgotten_by:
            self._forgotten, self._forgotten_by = [], client  # a lane that is gone took its snapshots with it
        ids = list(ids)
        self._stacks.forget(ids)
        self._forgotten += ids
        self.flush()

    async def export(self, ids: Sequence[int]) -> list[bytes]:
        """Signed states, which lanes of servers with the same key take: in entries, or by `import_`.

        Raises ServerRefused if any of them cannot leave, LaneLost. Cancellation harms nothing.
        """
        body = pb.Export(ids=ids).SerializeToString()
        async with self._keeping(()) as client:
            limit = SMALL_BODY_BYTES + len(ids) * bodies.MAX_STATE_BYTES
            found = bodies.decode_exported(await client.ask(pb.EXPORT, body, limit), len(ids))
        _check([each for each in found if isinstance(each, Status)])
        return [each for each in found if isinstance(each, bytes)]

    async def import_(self, states: Sequence[bytes]) -> list[int]:
        """Hold states that another lane exported; their ids.

        Raises ServerRefused if any of them is refused, of which none is held then; LaneLost; LocalProtocolError for
        more than travels at once. Cancellation leaves no snapshot.
        """
        ids = [self.new_id() for _ in states]
        body = pb.Import(ids=ids, states=states).SerializeToString()
        _check_size(body, "states")
        async with self._keeping(ids) as client:
            self._take(await client.ask(pb.IMPORT, body), ids)
        return ids

    # ------------------------------------------------------------------ turns

    @asynccontextmanager
    async def _keeping(self, ids: Sequence[int]) -> AsyncIterator[LaneClient]:
        """The lane's client, in its turn; unless the body succeeds, the snapshots `ids` are given back."""
        async with self._turn:
            client = self._owner.client_in_use()
            if client is not None:
                await client.place()
            if client is None or client is not self._owner.client_in_use():
                raise lane_lost("down", "the lane is not up, or its loss has not been received yet")
            try:
                yield client
            except BaseException:
                if client is self._owner.client_in_use():
                    self.forget(ids)
                raise

    def flush(self) -> None:
        """Send what was forgotten, if there are places; the lane asks for it after every reply."""
        client = self._owner.client_in_use()
        if self._forgotten and client is not None and client is self._forgotten_by and client.can_spare:
            client.tell(pb.RELEASE, pb.Release(ids=self._forgotten).SerializeToString())
            self._forgotten = []

    # ------------------------------------------------------------------ what states show

    def _stacked(self, spec: LaneSpec) -> bool:
        opened = self._owner.opened
        return spec.stack_leaf is not None and opened is not None and pb.FRAME_STACK in opened.features

    def _learn(self, client: LaneClient, entries: Sequence[SimulateEntry], outcomes: Outcomes) -> None:
        if client is not self._stacks_of:
            self._stacks, self._stacks_of = KnownStacks(), client  # states of a lane that is gone
        self._stacks.learn(entries, outcomes)

    def _take(self, body: bytes, ids: Sequence[int]) -> None:
        reply = bodies.decode_snapshot_reply(body, len(ids))
        self.store_bytes = reply.store_bytes
        _check(reply.status)

    def _spec(self) -> LaneSpec:
        if self._owner.spec is None:
            raise lane_lost("down", "the lane has not opened yet")
        return self._owner.spec


def _check_size(body: bytes, what: str) -> None:
    """The server breaks the stream on more than it reads, and would do so again after each resume."""
    if len(body) > bodies.MAX_REQUEST_BYTES:
        raise LocalProtocolError(f"{what} of {len(body)} bytes; {bodies.MAX_REQUEST_BYTES} are possible")


def _check(statuses: Sequence[Status]) -> None:
    """Raise what the first status that is not OK says."""
    for status in statuses:
        if not status.ok:
            cls = EnvFault if status.code == "ENV_FAULT" else ServerRefused
            raise cls(_ERRORS.get(status.code, status.code), status.detail)


# Statuses of entries whose errors have other names.
_ERRORS: Final = {"QUOTA": "SNAPSHOT_QUOTA", "BAD_STATE": "BAD_REQUEST"}
