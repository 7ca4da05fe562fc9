"""Bodies of the requests about snapshots, and what is said of each id; what waves come to is in `outcomes`.

Invariants: what one side encodes the other decodes to equal values (test_waves_round_trip); any bytes are decoded, or
refused with the documented error (test_any_bytes_decode_or_are_refused).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.spaces import Leaf
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

MAX_ENTRIES: Final = 4096  # of a wave
MAX_STEPS: Final = 10_000  # of an entry, and of its rollout
MAX_STATE_BYTES: Final = 4 * 1024 * 1024  # of an exported state
# Of a request with states in it, on a lane that has snapshots.
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024

_CODES: Final = frozenset(pb.EntryCode.values())


@dataclass(frozen=True, slots=True)
class Earlier:
    """The child of an earlier entry of the same wave."""

    entry: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """Up to `steps` uniform random actions after the last one, drawn by `seed`; rewards are summed with `gamma`."""

    steps: int
    gamma: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SimulateEntry:
    """One look ahead: from `parent` (an id, a signed state, or a child of this wave) by `actions`.

    `actions`: per leaf `[k, *leaf.shape]`, k may be 0. `keep_as`: the id that the state after them gets.
    `newest_frames`: of a stack the frames that the steps add will do; see `decode_outcomes`.
    """

    parent: int | bytes | Earlier
    actions: Sequence[Array]
    keep_as: int | None = None
    rng: pb.RngMode.ValueType = pb.RESAMPLE
    seed: int = 0
    rollout: Rollout | None = None
    want_obs: bool = True
    newest_frames: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """What became of one entry or id; `code` is the name of a wire EntryCode, OK where all is well."""

    code: str = "OK"
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.code == "OK"


class SnapshotReply(NamedTuple):
    """Of SNAPSHOT and IMPORT: one status and size for each id."""

    status: list[Status]
    sizes: list[int]
    store_bytes: int


# ------------------------------------------------------------------------------------------------------------ simulate


def encode_simulate(entries: Sequence[SimulateEntry], spec: LaneSpec) -> bytes:
    """The body of SIMULATE. Shapes and dtypes of actions have to fit exactly."""
    if len(entries) > MAX_ENTRIES:
        raise LocalProtocolError(f"{len(entries)} entries; a wave has {MAX_ENTRIES} at most")
    leaves = spec.action.leaves
    return pb.Simulate(entries=[_entry_to_proto(entry, leaves) for entry in entries]).SerializeToString()


def _entry_to_proto(entry: SimulateEntry, leaves: Sequence[Leaf]) -> pb.SimulateEntry:
    message = pb.SimulateEntry(
        actions=_action_bytes(entry.actions, leaves),
        child_id=entry.keep_as,
        rng=entry.rng,
        seed=entry.seed,
        want_obs=entry.want_obs,
        newest_frames=entry.newest_frames,
    )
    if isinstance(entry.parent, bytes):
        message.state = entry.parent
    elif isinstance(entry.parent, Earlier):
        message.entry = entry.parent.entry
    else:
        message.id = entry.parent
    if entry.rollout is not None:
        tail = entry.rollout
        message.rollout.CopyFrom(pb.RolloutTail(steps=tail.steps, gamma=tail.gamma, seed=tail.seed))
    return message


def _action_bytes(actions: Sequence[Array], leaves: Sequence[Leaf]) -> list[bytes]:
    if len(actions) != len(leaves):
        raise LocalProtocolError(f"{len(actions)} action arrays where the space has {len(leaves)} leaves")
    for array, leaf in zip(actions, leaves, strict=True):
        if array.dtype != leaf.dtype or array.ndim == 0 or array.shape[1:] != leaf.shape:
            raise LocalProtocolError(
                f"action{f' {leaf.path!r}' if leaf.path else ''} is {array.dtype}{list(array.shape)}; "
                f"an entry wants {leaf.dtype}{['k', *leaf.shape]}"
            )
    if len({len(array) for array in actions}) > 1:
        raise LocalProtocolError("the action leaves of an entry have different numbers of steps")
    return [tensors.to_bytes(array) for array in actions]


def decode_simulate(body: bytes, spec: LaneSpec) -> list[SimulateEntry | Status]:
    """The entries; in the place of one whose actions make no sense, its status."""
    message = parse_body(pb.Simulate, body)
    if len(message.entries) > MAX_ENTRIES:
        raise RemoteProtocolError(f"{len(message.entries)} entries; a wave has {MAX_ENTRIES} at most", "BAD_REQUEST")
    leaves = spec.action.leaves
    return [_entry_from_proto(each, leaves) for each in message.entries]


def _entry_from_proto(message: pb.SimulateEntry, leaves: Sequence[Leaf]) -> SimulateEntry | Status:
    parent: int | bytes | Earlier
    match message.WhichOneof("parent"):
        case "id":
            parent = message.id
        case "state":
            parent = message.state
        case "entry":
            parent = Earlier(message.entry)
        case _:
            return Status("BAD_STATE", "an entry needs a parent: an id, a state, or an earlier entry")
    rollout: Rollout | None = None
    if message.HasField("rollout"):
        rollout = Rollout(message.rollout.steps, message.rollout.gamma, message.rollout.seed)
        if rollout.steps > MAX_STEPS:
            return Status("UNSUPPORTED", f"a rollout has {MAX_STEPS} steps at most")
    if message.rng not in (pb.RESAMPLE, pb.FROZEN, pb.OPEN_LOOP):
        return Status("UNSUPPORTED", "rng has to be RESAMPLE, FROZEN or OPEN_LOOP")
    actions = _read_actions(message.actions, leaves)
    if isinstance(actions, Status):
        return actions
    child_id = message.child_id if message.HasField("child_id") else None
    shown = message.want_obs, message.newest_frames
    return SimulateEntry(parent, actions, child_id, message.rng, message.seed, rollout, *shown)


def _read_actions(parts: Sequence[bytes], leaves: Sequence[Leaf]) -> list[Array] | Status:
    """Per leaf `[k, *leaf.shape]`; k is what the lengths say, and 0 where the space takes no bytes."""
    if len(parts) != len(leaves):
        return Status("BAD_ACTION", f"{len(parts)} action arrays where the space has {len(leaves)} leaves")
    steps = next((len(part) // leaf.nbytes for part, leaf in zip(parts, leaves, strict=True) if leaf.nbytes), 0)
    if steps > MAX_STEPS:
        return Status("BAD_ACTION", f"{steps} steps; an entry has {MAX_STEPS} at most")
    try:
        return [
            tensors.from_bytes(part, leaf.dtype, (steps, *leaf.shape), "action")
            for part, leaf in zip(parts, leaves, strict=True)
        ]
    except RemoteProtocolError as error:
        return Status("BAD_ACTION", str(error))


# ------------------------------------------------------------------------------------------------------------- the rest


def status_to_proto(status: Status) -> pb.EntryStatus:
    return pb.EntryStatus(code=pb.EntryCode.Value(f"ENTRY_{status.code}"), detail=status.detail)


def status_from_proto(message: pb.EntryStatus) -> Status:
    if message.code == pb.ENTRY_OK:
        return _OK
    known = message.code in _CODES
    return Status(pb.EntryCode.Name(message.code)[6:] if known else f"CODE_{message.code}", message.detail)


def decode_snapshot_reply(body: bytes, num_ids: int) -> SnapshotReply:
    message = parse_body(pb.SnapshotResult, body)
    if len(message.status) != num_ids or len(message.bytes) != num_ids:
        raise RemoteProtocolError(f"{len(message.status)} states for {num_ids} ids")
    return SnapshotReply(list(map(status_from_proto, message.status)), list(message.bytes), message.store_bytes)


def decode_exported(body: bytes, num_ids: int) -> list[bytes | Status]:
    """The signed states; in the place of one that there is none of, its status."""
    message = parse_body(pb.Exported, body)
    if len(message.status) != num_ids or len(message.states) != num_ids:
        raise RemoteProtocolError(f"{len(message.states)} states for {num_ids} ids")
    statuses = map(status_from_proto, message.status)
    return [state if status.ok else status for state, status in zip(message.states, statuses, strict=True)]


_OK: Final = Status()
