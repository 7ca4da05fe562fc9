"""Requests about snapshots, as a lane process executes them.

Invariants: RESTORE compares before it sets (test_restore_compares_before_it_sets), and no slot goes on from half a
state (test_a_restore_that_fails_half_way_costs_the_slot); what came from an environment that
broke is gone (test_snapshots_of_a_broken_environment_are_gone); export and import keep what a client sees of a state
(test_an_imported_state_shows_what_was_exported).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final

import numpy as np

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire import snapshot_bodies as bodies
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.outcomes import encode_outcomes
from asyncrl.wire.snapshot_bodies import Status, status_to_proto
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from envserver import faults, gym_spec
from envserver.live_slots import LiveSlots
from envserver.snapshots import plain
from envserver.snapshots.choosing import Capability
from envserver.snapshots.codec import BadState, CannotCapture
from envserver.snapshots.pacing import Interrupted
from envserver.snapshots.rules import SnapshotRules
from envserver.snapshots.signing import Signer
from envserver.snapshots.simulating import Simulator, Wave, snapshot_of
from envserver.snapshots.store import Position, QuotaExceeded, Snapshot, SnapshotStore

log = logging.getLogger("envserver.snapshots")

MAX_IDS: Final = 65_536
OPENED_STATES: Final = 8


class SnapshotDesk:
    """Store and simulator of one lane."""

    def __init__(
        self, live: LiveSlots, capability: Capability, rules: SnapshotRules, spec: LaneSpec, incarnations: Sequence[int]
    ) -> None:
        self._live = live
        self._can = capability
        self._codec = capability.codec
        self._spec = spec
        self.store = SnapshotStore(rules.max_bytes, rules.max_count)
        self._incarnations = list(incarnations)
        self._tracker = RowTracker(len(incarnations))
        # A model's states fit the environment's spaces, and its codec may have the same name.
        name = f"{rules.mode}/{self._codec.name}" if rules.model else self._codec.name
        self._signer = Signer(rules.key, spec.hash(), name) if rules.key else None
        self._simulator = Simulator(self._codec, capability.scratch, capability.make_scratch, spec, self.store)
        # The state of a root comes with every entry that begins there.
        self._opened = lru_cache(OPENED_STATES)(self._open)
        self._read_obs = gym_spec.reader(capability.scratch.observation_space)

    @property
    def support(self) -> pb.SnapshotSupport.ValueType:
        return self._codec.support

    @property
    def exports(self) -> bool:
        return self._signer is not None and self._codec.exportable

    def saw(self, rows: StepRows) -> None:
        """Account for a reply of the lane: which step each slot is at, and in which incarnation."""
        for rebuilt in rows.rebuilt:
            self.store.drop_origin(rebuilt.row, self._incarnations[rebuilt.row])
            self._incarnations[rebuilt.row] = rebuilt.incarnation
        self._tracker.advance(rows.flags)

    def close(self) -> None:
        self.store.release_all()
        self._simulator.close()

    # ------------------------------------------------------------------ snapshot, release, restore

    def snapshot(self, body: bytes) -> bytes:
        request = parse_body(pb.Snapshot, body)
        if len(request.rows) != len(request.ids):
            raise RemoteProtocolError(f"{len(request.rows)} rows, but {len(request.ids)} ids", "BAD_REQUEST")
        pairs = list(zip(request.rows, _checked_ids(request.ids), strict=True))
        return self._many([row_id for _, row_id in pairs], [partial(self._captured, row) for row, _ in pairs])

    def _captured(self, row: int) -> Snapshot:
        if row >= len(self._incarnations):
            raise _Refused("BAD_STATE", f"row {row} of {len(self._incarnations)}")
        env = self._live.running(row)
        if env is None:
            raise _Refused("UNSUPPORTED", f"row {row} is in no episode: reset it first")
        try:
            state, nbytes = self._can.capture_live(env)
        except CannotCapture as error:
            raise _Refused("UNSUPPORTED", str(error)) from None
        except Exception as error:  # the environment's own methods
            raise _Refused("ENV_FAULT", faults.describe(error, "taking a snapshot")) from error
        origin = (row, self._incarnations[row])
        return snapshot_of(self._codec, state, nbytes, self._live.position(row), origin)

    def release(self, body: bytes) -> bytes:
        request = parse_body(pb.Release, body)
        count = self.store.release_all() if request.all else self.store.release(request.ids)
        return pb.Released(released=count, store_bytes=self.store.held_bytes).SerializeToString()

    def restore(self, body: bytes) -> StepRows:
        """The rows to answer with; a slot whose environment fails on the way is cut and created anew, as they say.

        ServerRefused, and the slot is where it was: STALE, SNAPSHOT_GONE, UNSUPPORTED, ENV_FAULT.
        """
        request = parse_body(pb.Restore, body)
        row = request.row
        if row >= len(self._incarnations):
            raise ServerRefused("BAD_REQUEST", f"row {row} of {len(self._incarnations)}")
        at = (self._incarnations[row], int(self._tracker.t[row]))
        if at != (request.expect_incarnation, request.expect_t):
            raise ServerRefused("STALE", f"row {row} is at incarnation {at[0]}, step {at[1]}: nothing was restored")
        if not self._can.restores_live:
            raise ServerRefused("UNSUPPORTED", "states of a model environment cannot become those of the real one")
        snapshot = self.store.get(request.id)
        if snapshot is None:
            raise ServerRefused("SNAPSHOT_GONE", f"there is no snapshot {request.id} in this lane (any more)")
        env = self._live.env(row)
        if env is None:
            raise ServerRefused("ENV_FAULT", f"row {row} has no environment now: it waits to be created anew")
        try:
            env = self._codec.restore(env, snapshot.state, None)
            obs = snapshot.position.obs or self._read_obs(self._codec.observe(env))
        except Exception as error:
            return self._live.lose(row, error, "restoring a snapshot")  # nobody knows where it stands now
        return self._live.replace(row, env, snapshot.position, obs)

    # ------------------------------------------------------------------ simulate

    def simulate(self, body: bytes, interrupted: Interrupted) -> bytes:
        wave = Wave(bodies.decode_simulate(body, self._spec), interrupted, self._opened)
        return encode_outcomes(self._simulator.run(wave), self.store.held_bytes)

    # ------------------------------------------------------------------ export and import

    def export(self, body: bytes) -> bytes:
        signer = self._exporter()
        statuses, states = [], []
        for snapshot_id in _checked_ids(parse_body(pb.Export, body).ids):
            snapshot = self.store.get(snapshot_id)
            status, state = Status("SNAPSHOT_GONE", f"there is no snapshot {snapshot_id} (any more)"), b""
            if snapshot is not None:
                status, state = self._sealed(signer, snapshot)
            statuses.append(status_to_proto(status))
            states.append(state)
        return pb.Exported(status=statuses, states=states).SerializeToString()

    def _sealed(self, signer: Signer, snapshot: Snapshot) -> tuple[Status, bytes]:
        at = snapshot.position
        seen = (at.obs, at.mask, at.to_play, at.game_return, at.game_length)
        try:
            return Status(), signer.seal((self._codec.dump(snapshot.state), seen))
        except (plain.NotPlain, CannotCapture, BadState) as error:
            return Status("UNSUPPORTED", str(error)), b""

    def import_(self, body: bytes) -> bytes:
        request = parse_body(pb.Import, body)
        self._exporter()
        if len(request.ids) != len(request.states):
            raise RemoteProtocolError(f"{len(request.ids)} ids, but {len(request.states)} states", "BAD_REQUEST")
        return self._many(_checked_ids(request.ids), [partial(self._imported, state) for state in request.states])

    def _imported(self, sealed: bytes) -> Snapshot:
        try:
            return self._opened(sealed)
        except BadState as error:
            raise _Refused("BAD_STATE", str(error)) from None

    def _open(self, sealed: bytes) -> Snapshot:
        if self._signer is None:
            raise BadState("this server takes no states from elsewhere: start it with --snapshot-key-file")
        value = self._signer.open(sealed)
        try:
            dumped, (obs, mask, to_play, game_return, game_length) = value
            position = Position(obs, mask, to_play, game_return, game_length)
        except (TypeError, ValueError):
            raise BadState("not a state: its parts are others") from None
        self._check_seen(position)
        return Snapshot(self._codec.load(dumped), len(sealed) + 200, position, None)

    def _check_seen(self, position: Position) -> None:
        wanted = [(leaf.dtype, leaf.shape) for leaf in self._spec.observation.leaves]
        fits = position.obs is None or list(map(_kind_of, position.obs)) == wanted
        if position.mask is not None:
            fits = fits and _kind_of(position.mask) == (np.dtype(np.bool_), (self._spec.mask_size,))
        if not fits:
            raise BadState("not a state: its observation is another environment's")

    def _exporter(self) -> Signer:
        if self._signer is None:
            raise ServerRefused("UNSUPPORTED", "states stay in their lane: start the server with --snapshot-key-file")
        return self._signer

    # ------------------------------------------------------------------ many at once

    def _many(self, ids: Sequence[int], makers: Sequence[Callable[[], Snapshot]]) -> bytes:
        """Make and hold a snapshot for each id that has none; the body of SNAPSHOT_RESULT."""
        statuses, sizes = [], []
        for snapshot_id, make in zip(ids, makers, strict=True):
            status, size = Status(), 0
            try:
                held = self.store.get(snapshot_id)
                if held is None:
                    self.store.check_room(0)
                    held = self.store.put(snapshot_id, make())
                size = held.nbytes
            except QuotaExceeded as error:
                status = Status("QUOTA", str(error))
            except _Refused as error:
                status = Status(error.code, str(error))
            statuses.append(status_to_proto(status))
            sizes.append(size)
        return pb.SnapshotResult(status=statuses, bytes=sizes, store_bytes=self.store.held_bytes).SerializeToString()


class _Refused(Exception):
    """One id gets no snapshot."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _kind_of(value: object) -> object:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else None


def _checked_ids(ids: Sequence[int]) -> list[int]:
    if len(ids) > MAX_IDS or len(set(ids)) != len(ids):
        raise RemoteProtocolError(f"at most {MAX_IDS} ids, each of them once", "BAD_REQUEST")
    return list(ids)
