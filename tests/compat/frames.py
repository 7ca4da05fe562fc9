"""One frame of every kind as protocol 1.0 has it, from our own encoders, with every field in it that they can fill.

`python -m tests.compat.frames` writes those that are missing to `golden/`. A file that is there is never written again:
bytes that were once sent are read for ever, and a change of them is a change of the protocol.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf.message import Message as ProtoMessage

from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, error_body, to_frames
from asyncrl.wire.flags import FIRST, NO_TRANSITION, TERMINATED
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.requests import ResetRequest, encode_reset, encode_step, to_json
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import EpisodeStats, Rebuilt, StepRows, encode

GOLDEN = Path(__file__).parent / "golden"
U4 = np.dtype("<u4")

OBSERVATION = SpaceSpec(
    (
        Node(pb.DICT),
        Node(pb.BOX, 0, "camera", np.dtype("<u1"), (2, 2), high=np.full((2, 2), 200, np.uint8)),
        Node(pb.TUPLE, 0, "inner"),
        Node(pb.DISCRETE, 2, "0", np.dtype("<i8"), n=5, start=-2),
        Node(pb.MULTI_BINARY, 2, "1", np.dtype("<i1"), (3,)),
        Node(pb.TEXT, 2, "2", min_length=1, max_length=2, charset="aé"),
    )
)
ACTION = SpaceSpec(
    (
        Node(pb.TUPLE),
        Node(pb.BOX, 0, "0", np.dtype("<f4"), (2,), low=np.array([-1, -2], "<f4"), high=np.array([1, 2], "<f4")),
        Node(
            pb.MULTI_DISCRETE,
            0,
            "1",
            np.dtype("<i4"),
            (2,),
            nvec=np.array([2, 3], "<i8"),
            nvec_start=np.array([0, 1], "<i8"),
        ),
    )
)
SPEC = LaneSpec(
    env="golden",
    observation=OBSERVATION,
    action=ACTION,
    mask_size=2,
    max_episode_steps=500,
    render_mode="rgb_array",
    render_fps=50.0,
    build="1.0",
    reward_low=-1.0,
    reward_high=1.0,
)


def observations(rows: int, start: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Bytes that count up, in arrays of the observation's leaves."""
    found = []
    for leaf in OBSERVATION.leaves:
        size = rows * leaf.nbytes
        data = bytes((start + number) % 128 for number in range(size))
        found.append(np.frombuffer(data, leaf.dtype).reshape(rows, *leaf.shape))
    return found


ROWS = StepRows(
    obs=observations(3, 0),
    rewards=np.array([0.5, -1.0, 1e300]),
    flags=np.array([0, TERMINATED | FIRST, FIRST | NO_TRANSITION], np.uint8),
    final_rows=np.array([1], U4),
    final_obs=observations(1, 64),
    mask=np.array([[1, 0], [0, 1], [1, 1]], np.bool_),
    final_mask=np.array([[0, 1]], np.bool_),
    to_play=np.array([0, 1, -1], np.int32),
    stats=EpisodeStats(np.array([1], U4), np.array([9.5]), np.array([100], U4), np.array([0.25], np.float32)),
    infos=[InfoColumn("lives", np.array([0, 1, 2], U4), np.array([3, 2, 1], np.int32))],
    final_infos=[InfoColumn("score", np.array([1], U4), np.array([[1.5, 2.5]]))],
    rebuilt=[Rebuilt(2, 7, "ENV_FAULT", "it raised")],
    infos_dropped=2,
    action_crc=0xDEADBEEF,
)
ACTIONS = [np.arange(6, dtype="<f4").reshape(3, 2), np.array([[0, 1], [1, 2], [1, 3]], "<i4")]
RESET = ResetRequest(np.array([True, False, True]), [5, None, 2**63], {"level": 3})
STATUS = [pb.EntryStatus(), pb.EntryStatus(code=pb.ENTRY_QUOTA, detail="full")]

OPEN = pb.Open(
    protocol=handshake.version(),
    features=[pb.RESUME_LANES, pb.FRAME_STACK, pb.SNAPSHOTS],
    run_id="run",
    learner_epoch=3,
    member="0",
    env="golden",
    kwargs_json=to_json({"size": 4}, "kwargs"),
    fleet_slots=[0, 1, 300],
    incarnations=[0, 2, 0],
    seeds=[1, 2, 2**40],
    run_seed=2**64 - 1,
    autoreset=pb.SAME_STEP,
    host=pb.SLOTS,
    per_slot_seeds=True,
    masked_reset=True,
    snapshots=True,
    scratch=2,
    resumable=True,
    render=True,
    client="asyncrl 0.1.0",
)
OPENED = pb.Opened(
    protocol=handshake.version(),
    features=[pb.RESUME_LANES],
    boot_id="boot",
    lane_id="lane",
    token=bytes(range(16)),
    host=pb.SLOTS,
    host_reason="no vector entry point",
    spec=SPEC.to_proto(),
    spec_hash=SPEC.hash(),
    autoreset=pb.SAME_STEP,
    max_in_flight=4,
    resume_window_ms=30_000,
    lease_ms=10_000,
    snapshot_support=pb.SNAPSHOT_EXACT,
    per_slot_seeds=True,
    masked_reset=True,
    server="envserver 0.1.0",
)
ENTRY = pb.SimulateEntry(
    state=b"signed",
    actions=[bytes(16), bytes(8)],
    child_id=0,
    rng=pb.RESAMPLE,
    seed=9,
    rollout=pb.RolloutTail(steps=10, gamma=0.99, seed=1),
    want_obs=True,
)
OUTCOME = pb.SimulateOutcome(
    status=STATUS[0], steps=2, rewards=bytes(16), flags=b"\0\1", obs=[b"o"], mask=b"\1\0", to_play=-1,
    rollout_return=1.5, rollout_steps=4, rollout_ended=True,
)  # fmt: skip

# Kind -> the body as a protobuf message, for the kinds that have no encoder of their own yet.
MESSAGES: dict[pb.Kind.ValueType, ProtoMessage] = {
    pb.OPEN: OPEN,
    pb.OPENED: OPENED,
    pb.SNAPSHOT: pb.Snapshot(rows=[0, 2], ids=[1, 2**64 - 1]),
    pb.RESTORE: pb.Restore(row=1, id=7, expect_incarnation=2, expect_t=11),
    pb.SIMULATE: pb.Simulate(entries=[ENTRY, pb.SimulateEntry(id=4), pb.SimulateEntry(entry=0)]),
    pb.RELEASE: pb.Release(ids=[1, 2], all=True),
    pb.EXPORT: pb.Export(ids=[3]),
    pb.IMPORT: pb.Import(ids=[3], states=[b"state"]),
    pb.RENDER: pb.Render(rows=np.array([0, 2], U4).tobytes()),
    pb.SNAPSHOT_RESULT: pb.SnapshotResult(status=STATUS, bytes=[100, 0], store_bytes=100),
    pb.SIMULATE_RESULT: pb.SimulateResult(outcomes=[OUTCOME], store_bytes=5),
    pb.RELEASED: pb.Released(released=2, store_bytes=1),
    pb.EXPORTED: pb.Exported(status=STATUS, states=[b"state", b""]),
    pb.RENDERED: pb.Rendered(images=[pb.Image(row=2, height=1, width=2, channels=3, pixels=bytes(6))]),
    pb.RESUME: pb.Resume(lane_id="lane", token=bytes(16), ack=5, learner_epoch=3, protocol=handshake.version()),
    pb.RESUMED: pb.Resumed(received=6),
    pb.CANCEL: pb.Cancel(seq=6),
    pb.PING: pb.Ping(nonce=2**64 - 1),
    pb.PONG: pb.Pong(nonce=2**64 - 1, executed=5),
    pb.EVENT: pb.Event(kind=pb.BUILDING, text="building", step=12, total=64, deadline_ms=9, row=3),
    pb.BYE: pb.Bye(reason="finished"),
}


def bodies() -> dict[pb.Kind.ValueType, bytes]:
    """The body of every kind there is."""
    found = {kind: message.SerializeToString(deterministic=True) for kind, message in MESSAGES.items()}
    found[pb.RESET] = encode_reset(RESET)
    found[pb.STEP] = encode_step(ACTIONS, ACTION.leaves, 3)[0]
    found[pb.STEP_RESULT] = encode(ROWS, SPEC)
    found[pb.ERROR] = error_body(
        "LANE_LOST", "it died", retryable=True, error_id="c0ffee", row=1, retry_after_ms=500, cause="crash(SIGKILL)"
    )
    return found


def message_of(kind: pb.Kind.ValueType, body: bytes) -> Message:
    """Sequenced kinds as request 300, the others as control frames; all of them with ack and deadline."""
    sequenced = kind < 16 or 32 <= kind < 48
    return Message(kind, 300 if sequenced else 0, body, 299, 5000)


def frames() -> dict[str, bytes]:
    """File name -> frame: odd kinds with a CRC, even ones without."""
    return {
        f"{pb.Kind.Name(kind)}.bin": to_frames(message_of(kind, body), bool(kind % 2))[0]
        for kind, body in bodies().items()
    }


if __name__ == "__main__":
    for name, data in frames().items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(data)
