"""The loop of a lane process, run in a thread against its socket."""

from __future__ import annotations

import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import gymnasium
import numpy as np
import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeDecoder
from asyncrl.wire.flags import FIRST, NO_TRANSITION
from asyncrl.wire.frame_stack import Encoder, StackDecoder, StackEncoder
from asyncrl.wire.requests import ResetRequest, encode_reset, encode_step
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows, decode
from asyncrl.wire.tensors import Array
from envserver import lane_process, opening
from envserver.host import Host, LaneWish, Progress
from envserver.lane_process import Build, LaneProcess, build_by_alias
from envserver.lane_socket import CONFIGURE, PREPARE, PREPARED, BlockingLaneSocket
from envserver.live_slots import LiveSlots
from envserver.registry import EnvAlias, Registry, parse_env_option

RESET_ALL = encode_reset(ResetRequest(None, None, None))
SECRET = "/home/somebody/secret"


def registry() -> Registry:
    return Registry([parse_env_option("CartPole-v1"), parse_env_option("Acrobot-v1")])


def open_request(env: str = "CartPole-v1", slots: int = 2, **fields: object) -> bytes:
    request = pb.Open(env=env, fleet_slots=range(10, 10 + slots), incarnations=[0] * slots)
    request.MergeFrom(pb.Open(**fields))  # type: ignore[arg-type]
    return request.SerializeToString()


class Rig:
    """A lane in a thread, and the relay's end of its socket."""

    def __init__(self, registry: Registry | None, build: Build = build_by_alias) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(20)
        self._theirs = theirs
        self._lane = LaneProcess(theirs, registry, build)
        self._peer = BlockingLaneSocket(self.sock)
        self._inbox: list[tuple[int, int, bytes]] = []
        self._seq = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with self._theirs:
            self._lane.serve()
        self._lane.close()

    def send(self, kind: int, body: bytes = b"", seq: int | None = None) -> int:
        if seq is None:
            self._seq += 1
            seq = self._seq
        self._peer.send(kind, seq, body)
        return seq

    def receive(self) -> tuple[int, int, bytes]:
        while not self._inbox:
            self._inbox += [message[:3] for message in self._peer.receive()]
        return self._inbox.pop(0)

    def call(self, kind: int, body: bytes = b"") -> tuple[int, bytes]:
        seq = self.send(kind, body)
        answer, answer_seq, answer_body = self.receive()
        while answer == pb.EVENT:
            answer, answer_seq, answer_body = self.receive()
        assert answer_seq == seq
        return answer, answer_body

    def refused(self, kind: int, body: bytes = b"") -> pb.Error:
        answer, answer_body = self.call(kind, body)
        assert answer == pb.ERROR
        return pb.Error.FromString(answer_body)

    def open(self, body: bytes) -> pb.Opened:
        kind, answer = self.call(pb.OPEN, body)
        assert kind == pb.OPENED, pb.Error.FromString(answer)
        return pb.Opened.FromString(answer)

    def close(self) -> None:
        self.sock.close()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(build: Build = build_by_alias, known: Registry | None = None) -> Rig:
        made.append(Rig(known or registry(), build))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
    gc.unfreeze()


class StackHost:
    """Stacks of two frames `[B, 2, 64]`, with a counter in a corner; `fault` runs inside every step, with its rows."""

    kind = pb.NATIVE
    reason = "for this test"
    autoreset = pb.SAME_STEP
    per_slot_seeds = True
    masked_reset = True
    soft_ends = False
    live: LiveSlots | None = None

    def __init__(self, wish: LaneWish) -> None:
        box = Node(kind=pb.BOX, dtype=np.dtype("<u1"), shape=(2, 64))
        action = Node(kind=pb.DISCRETE, dtype=np.dtype("<i8"), n=2)
        self.spec = LaneSpec(wish.env, SpaceSpec((box,)), SpaceSpec((action,)), stack_leaf=0, render_mode="rgb_array")
        self.wish = wish
        self.fault: Callable[[StepRows], None] = lambda _: None
        self.steps = 0
        self.closed = False

    def adopt(self, wish: LaneWish) -> None:
        self.wish = wish

    def stack_encoder(self) -> Encoder:
        return StackEncoder()

    def stacks(self) -> Array:
        newest = np.zeros((self.wish.num_slots, 64), np.uint8)
        newest[:, :3] = self.steps % 256
        return np.stack([np.maximum(newest, 1) - 1, newest], axis=1)

    def reset(self, request: ResetRequest) -> StepRows:
        flags = np.full(self.wish.num_slots, FIRST | NO_TRANSITION, np.uint8)
        return StepRows([self.stacks()], np.zeros(self.wish.num_slots), flags)

    def step(self, action: list[Array]) -> StepRows:
        self.steps += 1
        rows = StepRows([self.stacks()], np.zeros(self.wish.num_slots), np.zeros(self.wish.num_slots, np.uint8))
        self.fault(rows)
        return rows

    def render(self, rows: object) -> list[Array]:
        assert isinstance(rows, list)
        return [np.full((4, 5, 3), row, np.uint8) for row in rows]

    def close(self) -> None:
        self.closed = True


class StackHosts:
    """Builds StackHosts and remembers them."""

    def __init__(self) -> None:
        self.made: list[StackHost] = []

    def __call__(self, alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
        self.made.append(StackHost(wish))
        return self.made[-1]


def step_body(host_spec: LaneSpec, *action: int) -> bytes:
    return encode_step([np.array(action, np.int64)], host_spec.action.leaves, len(action))[0]


# ------------------------------------------------------------------------------------------------------------- stepping


def test_a_lane_steps_as_gymnasium_does(rigs: Callable[..., Rig]) -> None:
    """Open's seeds are those of the first reset; observations, rewards and flags are Gymnasium's own."""
    rig = rigs()
    opened = rig.open(open_request(seeds=[5, 6]))
    spec = LaneSpec.from_proto(opened.spec)
    assert (opened.host, opened.autoreset, opened.spec_hash) == (pb.SLOTS, pb.SAME_STEP, spec.hash())
    envs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    first = np.stack([env.reset(seed=5 + row)[0] for row, env in enumerate(envs)])
    kind, body = rig.call(pb.RESET, RESET_ALL)
    assert kind == pb.STEP_RESULT
    np.testing.assert_array_equal(decode(body, spec, 2).obs[0], first)
    for t in range(5):
        action = (t % 2, 1 - t % 2)
        sent, crc = encode_step([np.array(action, np.int64)], spec.action.leaves, 2)
        rows = decode(rig.call(pb.STEP, sent)[1], spec, 2)
        expected = [env.step(a) for env, a in zip(envs, action, strict=True)]
        np.testing.assert_array_equal(rows.obs[0], np.stack([one[0] for one in expected]))
        assert rows.rewards.tolist() == [one[1] for one in expected]
        assert rows.action_crc == crc


def test_a_bad_action_executes_nothing(rigs: Callable[..., Rig]) -> None:
    """Out of range, of a wrong size, with a wrong CRC: an error, and the host was not called."""
    hosts = StackHosts()
    rig = rigs(hosts)
    spec = LaneSpec.from_proto(rig.open(open_request()).spec)
    rig.call(pb.RESET, RESET_ALL)
    good = step_body(spec, 0, 1)
    damaged = pb.Step.FromString(good)
    damaged.action_crc ^= 1
    for body in (step_body(spec, 0, 2), step_body(spec, 0), damaged.SerializeToString()):
        assert rig.refused(pb.STEP, body).code == pb.BAD_ACTION
    assert "row 1" in rig.refused(pb.STEP, step_body(spec, 0, 2)).text
    assert hosts.made[0].steps == 0
    assert rig.call(pb.STEP, good)[0] == pb.STEP_RESULT
    assert hosts.made[0].steps == 1


def test_requests_out_of_place_are_refused(rigs: Callable[..., Rig]) -> None:
    """Before Open, before the first reset, a second Open, bytes that are no message, and what a lane cannot do."""
    rig = rigs()
    assert rig.refused(pb.RESET, RESET_ALL).code == pb.BAD_REQUEST
    assert rig.refused(pb.OPEN, b"\xff\xff").code == pb.BAD_FRAME
    assert rig.refused(pb.OPEN, open_request(slots=0)).code == pb.BAD_REQUEST
    assert rig.refused(pb.OPEN, open_request(seeds=[1])).code == pb.BAD_REQUEST
    assert rig.refused(pb.OPEN, open_request("NoSuch-v0")).code == pb.UNKNOWN_ENV
    assert rig.refused(pb.OPEN, open_request(kwargs_json=b'{"file": "x"}')).code == pb.BAD_KWARGS
    spec = LaneSpec.from_proto(rig.open(open_request()).spec)
    assert rig.refused(pb.STEP, step_body(spec, 0, 0)).code == pb.BAD_REQUEST
    assert rig.refused(pb.OPEN, open_request()).code == pb.BAD_REQUEST
    assert rig.refused(PREPARE, open_request()).code == pb.BAD_REQUEST
    assert rig.refused(pb.RENDER, b"").code == pb.UNSUPPORTED
    for kind in (pb.SNAPSHOT, pb.RESTORE, pb.SIMULATE, pb.RELEASE, pb.EXPORT, pb.IMPORT):
        assert rig.refused(kind).code == pb.UNSUPPORTED
    assert rig.call(pb.RESET, RESET_ALL)[0] == pb.STEP_RESULT


def test_a_cancelled_request_is_not_executed(rigs: Callable[..., Rig]) -> None:
    """What waits behind a running step is answered with CANCELLED; the running one and the next are executed."""
    hosts = StackHosts()
    rig = rigs(hosts)
    spec = LaneSpec.from_proto(rig.open(open_request()).spec)
    rig.call(pb.RESET, RESET_ALL)
    begun, go_on = threading.Event(), threading.Event()

    def wait(_: StepRows) -> None:
        begun.set()
        assert go_on.wait(20)

    hosts.made[0].fault = wait
    body = step_body(spec, 0, 0)
    running = rig.send(pb.STEP, body)
    assert begun.wait(20)
    cancelled, kept = rig.send(pb.STEP, body), rig.send(pb.STEP, body)
    for seq in (cancelled, running, 10_000):
        rig.send(pb.CANCEL, pb.Cancel(seq=seq).SerializeToString(), seq=0)
    go_on.set()
    replies = [rig.receive() for _ in range(3)]
    assert [(kind, seq) for kind, seq, _ in replies] == [
        (pb.STEP_RESULT, running),
        (pb.ERROR, cancelled),
        (pb.STEP_RESULT, kept),
    ]
    assert pb.Error.FromString(replies[1][2]).code == pb.CANCELLED
    assert hosts.made[0].steps == 2


def test_rendered_rows_are_those_asked_for(rigs: Callable[..., Rig]) -> None:
    """All rows by default; a row that is not there is refused."""
    rig = rigs(StackHosts())
    rig.open(open_request(slots=3, render=True))
    for asked, expected in ((b"", [0, 1, 2]), (np.array([1], "<u4").tobytes(), [1])):
        kind, body = rig.call(pb.RENDER, pb.Render(rows=asked).SerializeToString())
        assert kind == pb.RENDERED
        images = pb.Rendered.FromString(body).images
        assert [image.row for image in images] == expected
        assert [(image.height, image.width, image.channels) for image in images] == [(4, 5, 3)] * len(expected)
        assert [set(image.pixels) for image in images] == [{row} for row in expected]
    assert (
        rig.refused(pb.RENDER, pb.Render(rows=np.array([3], "<u4").tobytes()).SerializeToString()).code == pb.BAD_FRAME
    )


# ------------------------------------------------------------------------------------------------------------- failures


def test_an_internal_error_sends_only_an_id(rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    """The id finds the traceback in the log, and the lane goes on."""
    hosts = StackHosts()
    rig = rigs(hosts)
    spec = LaneSpec.from_proto(rig.open(open_request()).spec)
    rig.call(pb.RESET, RESET_ALL)

    def fail(_: StepRows) -> None:
        raise RuntimeError(SECRET)

    hosts.made[0].fault = fail
    error = rig.refused(pb.STEP, step_body(spec, 0, 0))
    assert error.code == pb.INTERNAL
    assert len(error.id) == 8
    assert SECRET not in error.text
    log = caplog.text
    assert error.id in log
    assert SECRET in log
    hosts.made[0].fault = lambda _: None
    assert rig.call(pb.STEP, step_body(spec, 0, 0))[0] == pb.STEP_RESULT


def test_a_failed_build_says_what_the_environment_said(
    rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    """Type and message, cut at 2 KiB; the traceback stays in the log. The lane can be opened again."""
    calls: list[LaneWish] = []

    def build(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
        calls.append(wish)
        if len(calls) == 1:
            raise ValueError("no such rom" + "!" * 5000)
        return StackHost(wish)

    rig = rigs(build)
    error = rig.refused(pb.OPEN, open_request())
    assert error.code == pb.BUILD_FAILED
    assert "ValueError: no such rom!" in error.text
    assert len(error.text) <= 2048
    assert __file__ not in error.text
    assert error.id in caplog.text
    rig.open(open_request())


def test_a_host_that_cannot_be_built_is_in_the_log(rigs: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
    """What the client was told, and the traceback of what it came from; the client's own mistakes are not."""

    def build(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
        if wish.render:
            raise ServerRefused("UNSUPPORTED", "cannot be rendered")
        raise ServerRefused("BUILD_FAILED", "no such rom") from OSError("no such file")

    rig = rigs(build)
    assert rig.refused(pb.OPEN, open_request()).code == pb.BUILD_FAILED
    assert "BUILD_FAILED: no such rom" in caplog.text
    assert "OSError: no such file" in caplog.text
    caplog.clear()
    assert rig.refused(pb.OPEN, open_request(render=True)).code == pb.UNSUPPORTED
    assert not caplog.records


@pytest.mark.parametrize("feature", [pb.FRAME_STACK, pb.CHANGES])
def test_all_of_it_travels_after_an_internal_error(rigs: Callable[..., Rig], feature: pb.Feature.ValueType) -> None:
    """The encoder remembers a reply that was never sent; the decoder gets every later one right."""
    hosts = StackHosts()
    rig = rigs(hosts)
    opened = rig.open(open_request(features=[feature, pb.SOFT_ENDS]))
    assert list(opened.features) == [feature]
    spec = LaneSpec.from_proto(opened.spec)
    host, stack, changes = hosts.made[0], StackDecoder(2, 2, (64,), np.dtype("<u1")), ChangeDecoder()
    decoders = (stack, None) if feature == pb.FRAME_STACK else (None, changes)
    whole: list[bool] = []

    def check(kind: int, body: bytes) -> None:
        assert kind == pb.STEP_RESULT
        message = pb.StepResult.FromString(body)
        whole.append(bool(message.stack_rows) if feature == pb.FRAME_STACK else not message.changed)
        np.testing.assert_array_equal(decode(body, spec, 2, *decoders).obs[0], host.stacks())

    def unsendable(rows: StepRows) -> None:
        if feature == pb.FRAME_STACK:
            rows.mask = cast(Array, "found out when the stacks are encoded already")
        else:
            rows.obs.append(cast(Array, "a leaf that comes after the others"))

    check(*rig.call(pb.RESET, RESET_ALL))
    check(*rig.call(pb.STEP, step_body(spec, 0, 0)))
    host.fault = unsendable
    assert rig.refused(pb.STEP, step_body(spec, 0, 0)).code == pb.INTERNAL
    host.fault = lambda _: None
    check(*rig.call(pb.STEP, step_body(spec, 0, 0)))
    check(*rig.call(pb.STEP, step_body(spec, 0, 0)))
    assert whole == [True, False, True, False]


@pytest.mark.parametrize("feature", [pb.FRAME_STACK, pb.CHANGES])
def test_a_reply_that_is_too_big_is_a_typed_error(
    rigs: Callable[..., Rig], feature: pb.Feature.ValueType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay would cut the lane off; so the client is told, and the rows after that can be read without these."""
    hosts = StackHosts()
    rig = rigs(hosts)
    opened = rig.open(open_request(slots=4, features=[feature]))
    spec = LaneSpec.from_proto(opened.spec)
    stack, changes = StackDecoder(4, 2, (64,), np.dtype("<u1")), ChangeDecoder()
    decoders = (stack, None) if feature == pb.FRAME_STACK else (None, changes)
    _, body = rig.call(pb.RESET, RESET_ALL)
    decode(body, spec, 4, *decoders)
    with monkeypatch.context() as patch:
        patch.setattr(lane_process, "MAX_BODY_BYTES", 10)
        error = rig.refused(pb.STEP, step_body(spec, 0, 0, 0, 0))
    assert error.code == pb.FRAME_TOO_BIG
    assert "the reply to STEP has " in error.text
    kind, body = rig.call(pb.STEP, step_body(spec, 0, 0, 0, 0))
    assert kind == pb.STEP_RESULT
    np.testing.assert_array_equal(decode(body, spec, 4, *decoders).obs[0], hosts.made[0].stacks())


# ------------------------------------------------------------------------------------------------------------- building


def test_open_takes_the_prepared_environments_where_they_fit(rigs: Callable[..., Rig]) -> None:
    """Other fleet slots of the same alias, kwargs and size: nothing is built again, and the host learns whose it is."""
    hosts = StackHosts()
    rig = rigs(hosts)
    kind, body = rig.call(
        PREPARE, pb.Open(env="CartPole-v1", fleet_slots=[0, 1], incarnations=[0, 0]).SerializeToString()
    )
    assert kind == PREPARED
    assert pb.Opened.FromString(body).spec_hash == hosts.made[0].spec.hash()
    rig.open(open_request(run_seed=9, per_slot_seeds=True))
    assert len(hosts.made) == 1
    assert (list(hosts.made[0].wish.fleet_slots), hosts.made[0].wish.run_seed) == ([10, 11], 9)


@pytest.mark.parametrize(
    "other", [open_request(slots=3), open_request("Acrobot-v1"), open_request(render=True), open_request(host=pb.SLOTS)]
)
def test_prepared_environments_that_do_not_fit_are_closed(rigs: Callable[..., Rig], other: bytes) -> None:
    """Another size, alias, render wish or host: built anew."""
    hosts = StackHosts()
    rig = rigs(hosts)
    rig.call(PREPARE, open_request())
    rig.open(other)
    assert [host.closed for host in hosts.made] == [True, False]


def test_building_tells_how_far_it_is(rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Events with seq 0 while it builds, but not one for each environment of many."""

    def build(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
        for built in range(1000):
            progress(built, 1000)
        monkeypatch.setattr(opening, "PROGRESS_EVERY_S", 0.0)
        time.sleep(0.001)
        progress(1000, 1000)
        return StackHost(wish)

    monkeypatch.setattr(opening, "PROGRESS_EVERY_S", 60.0)
    rig = rigs(build)
    rig.send(pb.OPEN, open_request())
    kind, seq, body = rig.receive()
    event = pb.Event.FromString(body)
    assert (kind, seq, event.kind, event.step, event.total) == (pb.EVENT, 0, pb.BUILDING, 1000, 1000)
    assert rig.receive()[:2] == (pb.OPENED, 1)


def test_a_lane_that_was_not_forked_is_configured_first(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CONFIGURE nothing opens; with it the aliases are known."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    rig = Rig(None)
    try:
        assert rig.refused(pb.OPEN, open_request()).code == pb.BAD_REQUEST
        told = {"path": sys.path, "registry": registry().to_json()}
        rig.send(CONFIGURE, json.dumps(told).encode(), seq=0)
        rig.open(open_request("Acrobot-v1"))
    finally:
        rig.close()
        gc.unfreeze()


def test_the_loop_ends_and_closes_the_host_when_the_socket_closes(rigs: Callable[..., Rig]) -> None:
    """An empty read is the end, whatever was going on."""
    hosts = StackHosts()
    rig = rigs(hosts)
    rig.open(open_request())
    rig.close()
    assert hosts.made[0].closed
