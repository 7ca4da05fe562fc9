"""The relay between an in-memory stream and an in-memory lane process; time passes by `tick` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader
from asyncrl.wire.lane_table import LaneState
from envserver import outbox as outbox_module
from envserver import relay as relay_module
from envserver.lane_socket import BROKEN
from envserver.relay import LaneIdentity, Relay, RelayLimits
from tests.unit.envserver.memory_lane import MemoryBackend, MemoryClient, settle


class Rig:
    """One relay, its backend, and the streams that carried it."""

    def __init__(self, group: asyncio.TaskGroup, resumable: bool = True, **limits: Any) -> None:
        self.group = group
        self.backend = MemoryBackend()
        self.closed: list[str] = []
        identity = LaneIdentity("run", 3, "", "toy", (0,), resumable)
        known = RelayLimits(**{"max_in_flight": 4, "lease_s": 10.0, "resume_window_s": 30.0, **limits})
        self.relay = Relay(self.backend, identity, known, "boot", lambda _, why: self.closed.append(why))
        self.client = MemoryClient()
        self.carriers: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        """Hand the client's present stream to the relay."""
        reader = FrameReader()
        first = reader.feed(await self.client.stream.to_server.get() or b"")
        assert first is not None
        self.carriers.append(self.group.create_task(self.relay.carry(self.client.stream, reader, first)))
        await settle()

    async def open(self) -> None:
        self.client.open(resumable=self.relay.identity.resumable)
        await self.carry()
        assert [message.kind for message in self.client.pump()] == [pb.OPENED]

    async def resume(self) -> None:
        self.client.dial_again(epoch=3)
        await self.carry()
        self.client.pump()
        await settle()

    def end(self) -> None:
        self.client.stream.to_server.put_nowait(None)


Scenario = Callable[[Rig], Coroutine[Any, Any, None]]


async def play(scenario: Scenario, **options: Any) -> Rig:
    """Run a scenario on an opened lane; every stream is ended afterwards."""
    async with asyncio.TaskGroup() as group:
        rig = Rig(group, **options)
        await rig.open()
        await scenario(rig)
        rig.end()
        await settle()
    return rig


def kinds(rig: Rig) -> list[int]:
    return [message.kind for message in rig.client.pump()]


async def test_replies_go_through_in_order() -> None:
    """Pipelined requests reach the process in order, and so do its replies the client."""

    async def scenario(rig: Rig) -> None:
        for _ in range(4):
            rig.client.step()
        await settle()
        assert [seq for _, seq, _ in rig.backend.requests] == [1, 2, 3, 4, 5]
        for _ in range(4):
            rig.backend.answer()
        await settle()
        assert [message.seq for message in rig.client.pump()] == [2, 3, 4, 5]

    await play(scenario)


async def test_resume_loses_and_repeats_nothing() -> None:
    """Replies made while no stream was there arrive after the resume; each exactly once."""

    async def scenario(rig: Rig) -> None:
        rig.client.step()
        rig.client.step()
        await settle()
        rig.backend.answer()
        await settle()  # written to a stream that nobody reads any more
        rig.client.hang_up()
        await settle()
        rig.backend.answer()
        rig.client.step()  # queued while detached
        await rig.resume()
        assert [seq for _, seq, _ in rig.backend.requests] == [1, 2, 3, 4]
        rig.backend.answer()
        await settle()
        rig.client.pump()
        replies = [message.seq for message in rig.client.delivered if message.kind == pb.STEP_RESULT]
        assert replies == [2, 3, 4]

    rig = await play(scenario)
    assert rig.client.lane.state is LaneState.LIVE


async def test_held_replies_come_before_lane_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A reply that the process gave before it died is delivered, then LANE_LOST with its cause and last words.

    The server's log has them too.
    """

    async def scenario(rig: Rig) -> None:
        rig.client.step()
        await settle()
        rig.client.hang_up()
        await settle()
        rig.backend.answer()
        rig.backend.die("crash(SIGSEGV)")
        await settle()
        assert rig.closed == ["crash(SIGSEGV)"]
        await rig.resume()
        assert [message.kind for message in rig.client.delivered[-3:]] == [pb.RESUMED, pb.STEP_RESULT, pb.ERROR]
        error = pb.Error.FromString(rig.client.delivered[-1].body)
        assert (error.code, error.cause) == (pb.LANE_LOST, "crash(SIGSEGV)")
        assert "the last words" in error.text

    rig = await play(scenario)
    assert rig.closed == ["crash(SIGSEGV)"]
    assert any("lost, crash(SIGSEGV)\nits last output:\nthe last words" in text for text in caplog.messages)


async def test_a_new_stream_takes_the_lane_from_the_old_one() -> None:
    """A client that dials again before the server noticed the break gets its lane; the old stream ends."""

    async def scenario(rig: Rig) -> None:
        rig.client.lane.stream_broke()
        await rig.resume()
        await settle()
        assert rig.carriers[0].cancelled() and not rig.carriers[1].done()
        rig.client.step()
        await settle()
        rig.backend.answer()
        await settle()
        assert kinds(rig) == [pb.STEP_RESULT]

    await play(scenario)


@pytest.mark.parametrize("end", ["bye", "eof", "bye from the server", "fence", "garbage", "protocol error"])
async def test_every_end_gives_the_process_back(end: str) -> None:
    """However a lane that cannot be resumed ends, its process is told to go and its slots are given back once."""

    async def scenario(rig: Rig) -> None:
        if end == "bye":
            rig.client.send(rig.client.lane.control(pb.BYE))
        elif end == "eof":
            rig.end()
        elif end == "bye from the server":
            rig.relay.bye("drained")
        elif end == "fence":
            rig.relay.fence(4)
        elif end == "garbage":
            rig.client.send([b"\xff\xff\xff"])
        else:
            rig.client.send([pb.Frame(seq=2, kind=pb.STEP_RESULT, ack=1).SerializeToString()])
        await settle()

    rig = await play(scenario, resumable=False)
    assert rig.backend.closed and rig.relay.closed
    assert len(rig.closed) == 1


@pytest.mark.parametrize("damage", [b"\xff\xff\xff", pb.Frame(seq=7, kind=pb.STEP, ack=1).SerializeToString()])
async def test_damage_breaks_the_stream_but_not_a_resumable_lane(damage: bytes) -> None:
    """Nonsense, or a request that was swallowed, ends the stream with BAD_FRAME; the lane waits for a resume."""

    async def scenario(rig: Rig) -> None:
        stream = rig.client.stream
        rig.client.send([damage])
        await settle()
        assert stream.aborted is not None and stream.aborted[0] == "BAD_FRAME"
        rig.client.lane.stream_broke()
        await rig.resume()
        rig.client.step()
        await settle()
        rig.backend.answer()
        await settle()
        assert kinds(rig) == [pb.STEP_RESULT]

    await play(scenario)


async def test_a_protocol_error_is_told_and_ends_the_lane() -> None:
    """An illegal request is answered with one typed ERROR, even on a lane that could be resumed."""

    async def scenario(rig: Rig) -> None:
        rig.client.send([pb.Frame(seq=2, kind=pb.STEP_RESULT, ack=1).SerializeToString()])
        await settle()
        (message,) = rig.client.pump()
        assert pb.Error.FromString(message.body).code == pb.BAD_FRAME

    rig = await play(scenario)
    assert rig.relay.closed


async def test_a_hang_is_dumped_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reply within the deadline of the head of line: stacks, kill, LANE_LOST(hang)."""
    monkeypatch.setattr(relay_module, "DUMP_S", 0.0)

    async def scenario(rig: Rig) -> None:
        _, frames = rig.client.lane.request(pb.STEP, b"", deadline_ms=5000)
        rig.client.send(frames)
        await settle()
        now = asyncio.get_running_loop().time()
        rig.relay.tick(now + 4.9)
        assert rig.backend.dumps == 0
        rig.relay.tick(now + 5.1)
        await asyncio.sleep(0.01)
        assert rig.backend.dumps == 1
        error = pb.Error.FromString(rig.client.pump()[-1].body)
        assert (error.code, error.cause) == (pb.LANE_LOST, "hang")

    rig = await play(scenario, lease_s=100.0)
    assert rig.closed == ["hang"]


async def test_a_lane_is_told_the_deadline_that_is_enforced() -> None:
    """The client's, at most the server's own bound, and the default of a request that names none."""

    async def scenario(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        for deadline_ms in (5_000, 1_200_000, 0):
            _, frames = rig.client.lane.request(pb.SIMULATE, b"", deadline_ms)
            rig.client.send(frames)
        await settle()
        assert rig.backend.deadlines_ms[1:] == [5_000, 600_000, 30_000]
        rig.backend.answer()
        rig.relay.tick(loop.time() + 599)
        assert rig.backend.dumps == 0
        rig.relay.tick(loop.time() + 601)
        assert rig.backend.dumps == 1

    await play(scenario, lease_s=1000.0)


async def test_a_later_request_waits_for_its_turn() -> None:
    """The deadline runs from head of line: time spent behind another request does not count."""

    async def scenario(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        for deadline_ms in (60_000, 5_000):
            _, frames = rig.client.lane.request(pb.STEP, b"", deadline_ms)
            rig.client.send(frames)
        await settle()
        rig.relay.tick(loop.time() + 50)
        assert rig.backend.dumps == 0
        rig.backend.answer()
        rig.relay.tick(loop.time() + 4)
        assert rig.backend.dumps == 0
        rig.relay.tick(loop.time() + 6)
        assert rig.backend.dumps == 1

    await play(scenario, lease_s=1000.0)


async def test_a_silent_client_loses_its_stream_and_then_its_lane() -> None:
    """Silence past the lease breaks the stream; the lane goes when the resume window is over."""

    async def scenario(rig: Rig) -> None:
        now = asyncio.get_running_loop().time()
        rig.relay.tick(now + 9)
        assert (rig.relay.attached, rig.relay.closed) == (True, False)
        rig.relay.tick(now + 11)
        await settle()
        assert (rig.relay.attached, rig.relay.closed) == (False, False)
        rig.relay.tick(asyncio.get_running_loop().time() + 29)
        assert (rig.relay.closed, rig.backend.closed) == (False, False)
        rig.relay.tick(asyncio.get_running_loop().time() + 31)
        assert (rig.relay.closed, rig.backend.closed) == (True, True)

    await play(scenario)


async def test_ping_is_answered_with_progress() -> None:
    """PONG carries the nonce and how far the lane has come."""

    async def scenario(rig: Rig) -> None:
        rig.client.step()
        await settle()
        rig.backend.answer()
        rig.client.send(rig.client.lane.control(pb.PING, pb.Ping(nonce=77).SerializeToString()))
        await settle()
        pong = pb.Pong.FromString(rig.client.pump()[-1].body)
        assert (pong.nonce, pong.executed) == (77, 2)

    await play(scenario)


async def test_only_what_is_under_way_is_cancelled_and_once() -> None:
    """A client that floods a lane with CANCEL has it told once for each request that is not answered, in few bytes."""

    async def scenario(rig: Rig) -> None:
        def cancel(seq: int, padding: bytes = b"") -> None:
            rig.client.send(rig.client.lane.control(pb.CANCEL, pb.Cancel(seq=seq).SerializeToString() + padding))

        def told() -> list[int]:
            return [pb.Cancel.FromString(body).seq for body in rig.backend.cancelled]

        rig.client.step()
        rig.client.step()
        unknown_field = b"\xfa\x01\xff\x01" + bytes(255)
        for seq in (0, 1, 2, 3, 4, 2**64 - 1):  # 1 is OPEN, which is answered; 4 was never sent
            for _ in range(20):
                cancel(seq, unknown_field)
        await settle(300)
        assert told() == [2, 3]
        assert max(map(len, rig.backend.cancelled)) < 16
        rig.backend.answer()
        cancel(2)
        await settle()
        assert told() == [2, 3]

    await play(scenario)


async def test_a_cancel_that_is_none_is_a_protocol_error() -> None:
    """Its bytes reach no lane process: the client is told, and the lane ends as after any nonsense."""

    async def scenario(rig: Rig) -> None:
        rig.client.send(rig.client.lane.control(pb.CANCEL, b"\xff\xff"))
        await settle()
        (message,) = rig.client.pump()
        assert pb.Error.FromString(message.body).code == pb.BAD_FRAME
        assert rig.backend.cancelled == []

    await play(scenario)


async def test_a_resume_needs_token_and_epoch() -> None:
    """A wrong token or an older learner_epoch does not get the lane."""

    async def scenario(rig: Rig) -> None:
        token = rig.client.lane._token
        assert rig.relay.resume_refused(pb.Resume(token=b"guess", learner_epoch=3)) is not None
        refused = rig.relay.resume_refused(pb.Resume(token=token, learner_epoch=2))
        assert refused is not None and refused[0] == "FENCED"
        assert rig.relay.resume_refused(pb.Resume(token=token, learner_epoch=3)) is None

    await play(scenario)


async def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox is bounded: a flood of PINGs from a client that reads nothing ends its stream."""
    monkeypatch.setattr(outbox_module, "MAX_OUTBOX", 16)
    never = asyncio.Event()

    async def stuck(_frame: bytes) -> None:
        await never.wait()

    async with asyncio.TaskGroup() as group:
        rig = Rig(group)
        rig.client.stream.write = stuck  # type: ignore[method-assign, assignment]
        rig.client.open()
        await rig.carry()
        ping = pb.Frame(kind=pb.PING, body=pb.Ping(nonce=1).SerializeToString(), ack=0).SerializeToString()
        rig.client.send([ping] * 40)
        await settle(100)
        assert not rig.relay.attached
    assert rig.carriers[0].cancelled()


@pytest.mark.parametrize(
    ("kind", "seq", "body", "says"),
    [(pb.STEP_RESULT, 9, b"", "reply 9 of kind 33 where 2 is due"), (BROKEN, 0, b"a mask over 7", "a mask over 7")],
    ids=["out of turn", "broken"],
)
async def test_a_process_that_breaks_the_protocol_is_named(kind: int, seq: int, body: bytes, says: str) -> None:
    """It is killed, nothing of it is forwarded, and the loss is called by what it did, not by its end."""

    async def scenario(rig: Rig) -> None:
        rig.backend.on_message(kind, seq, body)
        await settle()
        (message,) = rig.client.pump()
        error = pb.Error.FromString(message.body)
        assert (error.code, error.cause) == (pb.LANE_LOST, "protocol")
        assert says in error.text

    rig = await play(scenario)
    assert rig.closed == ["protocol"]
    assert rig.relay.lost == "protocol"
