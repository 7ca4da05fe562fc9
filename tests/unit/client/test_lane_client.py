"""One lane against a ServerLane in memory, on virtual time."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from asyncrl.client.lane_carrier import MAX_DAMAGED, MAX_VAIN
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import (
    ConnectionLost,
    LaneLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServerRefused,
)
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, error_body, to_frames
from tests.unit.client.lane_rig import B, Rig, rig, sim
from tests.unit.client.toy_server import EPISODE, ToyPipe, ToyServer, ToyStream


def test_open_and_reset_travel_together() -> None:
    """From the dial to the first observations is one round trip: both are sent before anything arrives."""

    async def main() -> None:
        async with rig(hold_replies=True) as each:
            await asyncio.sleep(0.5)
            (lane,) = each.server.all_lanes
            assert [request.kind for request in lane.waiting] == [pb.OPEN, pb.RESET]
            lane.answer_all()
            await each.owner.have(1)

    sim(main)


def test_rows_arrive_once_and_in_order() -> None:
    """Pipelined as deep as the server allows: what was executed is what arrived, numbered without gaps."""

    async def main() -> None:
        async with rig(max_in_flight=4) as each:
            await each.owner.have(1)
            sent = 0
            while sent < 40:
                while each.lane.can_request and sent < 40:
                    each.step(sent)
                    sent += 1
                await asyncio.sleep(0.001)
            await each.owner.have(41)
            assert each.executed == each.rewards == list(range(40))
            identities = [(int(episode[0]), int(t[0])) for _, episode, t in each.owner.rows[1:]]
            assert identities == [(n // EPISODE, n % EPISODE) for n in range(40)]

    sim(main)


def test_more_than_allowed_is_the_callers_fault() -> None:
    """One request too many raises, and the lane goes on."""

    async def main() -> None:
        async with rig(max_in_flight=2) as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            each.step(1)
            each.step(2)
            with pytest.raises(LocalProtocolError, match="unanswered"):
                each.step(3)
            await asyncio.sleep(0.01)
            each.server.all_lanes[0].answer_all()
            await each.owner.have(3)
            assert each.rewards == [1, 2]

    sim(main)


def test_the_owner_hears_of_every_reply() -> None:
    """Of whatever kind, refusals and replies that nobody waits for among them; once each."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            assert each.owner.replies == 2  # OPENED, and the first rows
            each.step(1)
            each.lane.tell(pb.RELEASE, b"")
            await each.lane.ask(pb.RENDER, b"")
            assert each.owner.replies == 5
            each.step(1000)
            await each.lane.ask(pb.RENDER, b"")
            assert (each.owner.replies, len(each.owner.refused)) == (7, 1)

    sim(main)


def test_a_step_before_opened_is_the_callers_fault() -> None:
    """Nobody knows the shape of an action yet."""

    async def main() -> None:
        async with rig(hold_replies=True) as each:
            with pytest.raises(LocalProtocolError, match="not opened"):
                each.step(1)

    sim(main)


@pytest.mark.parametrize("break_after", range(12))
def test_resume_loses_and_repeats_nothing(break_after: int) -> None:
    """The stream breaks at every point of a pipelined exchange: executed once, stored once, in order."""

    async def main() -> None:
        async with rig(max_in_flight=4) as each:
            await each.owner.have(1)
            seen = 0

            def on_rows() -> None:
                nonlocal seen
                seen += 1
                if seen % 12 == break_after:
                    each.server.snap_all()

            each.owner.on_rows = on_rows
            sent = 0
            while sent < 40:
                while each.lane.can_request and sent < 40:
                    each.step(sent)
                    sent += 1
                await asyncio.sleep(0.001)
            await each.owner.have(41)
            assert each.executed == each.rewards == list(range(40))
            assert len(each.server.all_lanes) == 1
            assert set(each.owner.resumed) == {"server_lost"}
            assert each.ended is None

    sim(main)


def test_replies_that_come_again_are_dropped() -> None:
    """A reply that was lost to no one is sent again after a resume, and delivered once."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.step(1)
            await each.owner.have(2)
            (lane,) = each.server.all_lanes
            assert lane.protocol._cache
            frame = to_frames(lane.protocol._cache[-1], True)
            lane.send(frame + frame)
            each.step(2)
            await each.owner.have(3)
            assert each.rewards == [1, 2]
            assert each.context.duplicates == 2

    sim(main)


def test_requests_made_without_a_stream_travel_after_it() -> None:
    """While the lane is detached its owner may go on asking."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.up = False
            each.server.snap_all()
            await asyncio.sleep(0.5)
            each.step(7)
            await asyncio.sleep(3.0)
            assert each.executed == []
            each.server.up = True
            await each.owner.have(2)
            assert each.executed == each.rewards == [7]

    sim(main)


def test_a_down_server_is_not_stormed() -> None:
    """Ten seconds of outage cost a handful of attempts; the lane is back soon after its end."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with rig() as each:
            await each.owner.have(1)
            each.server.up = False
            each.server.snap_all()
            before = each.server.dials
            await asyncio.sleep(10.0)
            assert each.server.dials - before <= 12
            each.server.up = True
            each.step(1)
            start = loop.time()
            await each.owner.have(2)
            assert loop.time() - start < 4.5

    sim(main)


def test_the_resume_window_ends() -> None:
    """A server that stays away for longer than it keeps lanes has lost this one."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.step(1)
            each.server.up = False
            each.server.snap_all()
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "server_lost"
            assert 30 < asyncio.get_running_loop().time() < 45
            assert each.lane.unanswered == 1

    sim(main)


def test_a_restarted_server_is_not_asked_to_resume() -> None:
    """Another boot_id: the lane is gone, and the client knows at once."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            dials = each.server.dials
            each.server.die()
            each.server.restart("boot-2")
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "server_lost"
            assert each.server.dials == dials
            assert asyncio.get_running_loop().time() < 1.0

    sim(main)


def test_a_break_makes_old_news_worthless() -> None:
    """A description from a moment before the break says nothing about the server after it."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            dials = each.server.dials
            await each.link.describe()
            each.server.die()
            each.server.restart("boot-2")
            await each.over.wait()
            assert each.server.dials == dials

    sim(main)


def test_a_lane_that_is_not_resumable_is_lost_at_once() -> None:
    """No window: the loss is known in the moment the stream breaks."""

    async def main() -> None:
        async with rig(resumable=False) as each:
            await each.owner.have(1)
            start = asyncio.get_running_loop().time()
            each.server.snap_all()
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "server_lost"
            assert asyncio.get_running_loop().time() - start < 0.01

    sim(main)


def flip(kind: int, body: bytes) -> bytes:
    return bytes([body[0] ^ 0xFF]) + body[1:]


MANGLED: list[tuple[str, Callable[[int, bytes], bytes]]] = [
    ("no protobuf", lambda kind, body: b"\xff" * 9),
    ("no rows", lambda kind, body: b""),
    ("flags too short", lambda kind, body: pb.StepResult(flags=b"\0", rewards=bytes(8 * B)).SerializeToString()),
    ("another action", lambda kind, body: body + pb.StepResult(action_crc=1).SerializeToString()),
    ("an illegal flag", lambda kind, body: body + pb.StepResult(flags=bytes([3] * B)).SerializeToString()),
    ("a row that is never born", lambda kind, body: body + pb.StepResult(flags=bytes([20] * B)).SerializeToString()),
]


@pytest.mark.parametrize(("name", "mangle"), MANGLED)
def test_every_end_is_one_typed_error(name: str, mangle: Callable[[int, bytes], bytes]) -> None:
    """Bodies that make no sense cost the lane, once, with a type and a cause; the server is told BYE."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.mangle = mangle
            each.step(1)
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "protocol"
            assert len(each.owner.rows) == 1
            await asyncio.sleep(2.0)
            assert each.server.byes == 1

    sim(main)


@pytest.mark.parametrize("body", [error_body("LANE_LOST", "it died", cause="crash(SIGSEGV)"), b"\xff\xff"])
def test_whoever_asks_hears_of_a_reply_that_ends_the_lane(body: bytes) -> None:
    """The reply itself says that the lane is gone, or is no message: the waiter has the same error as `run`."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.refuse_next = body
            with pytest.raises(LaneLost) as caught:
                await each.lane.ask(pb.RENDER, b"")
            await each.over.wait()
            assert caught.value is each.ended
            assert each.lane.unanswered == 1

    sim(main)


def test_a_request_that_breaks_every_stream_ends_the_lane() -> None:
    """The server resumes, and the stream breaks before the reply, time and again: the request may be the reason."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            resumed: list[str] = []

            def breaks_again(cause: str) -> None:
                resumed.append(cause)
                each.server.snap_all()

            each.owner.lane_resumed = breaks_again  # type: ignore[method-assign]
            each.server.snap_all()
            with pytest.raises(LaneLost, match=f"resumed {MAX_VAIN} times, and broken before each reply") as caught:
                await each.lane.ask(pb.RENDER, b"")
            assert caught.value.cause == "server_lost"
            assert len(resumed) == MAX_VAIN
            assert asyncio.get_running_loop().time() > 4.0  # with growing pauses

    sim(main)


def test_streams_that_break_between_replies_end_nothing() -> None:
    """However many of them, of a lane that rests and of one that is answered now and then."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            for _ in range(2 * MAX_VAIN):
                each.server.snap_all()
                await asyncio.sleep(5.0)
            for number in range(2 * MAX_VAIN):
                each.step(number)
                each.server.snap_all()
                await asyncio.sleep(5.0)
            assert each.ended is None
            assert each.rewards == list(range(2 * MAX_VAIN))

    sim(main)


def test_a_reply_that_takes_minutes_to_travel_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part every two seconds, longer than any deadline: nobody is stalled or late, and the server hears us."""
    get, heard = ToyPipe.get, []

    async def slow(pipe: ToyPipe) -> bytes | None:
        data = await get(pipe)
        if data is not None and len(data) > 200_000:
            await asyncio.sleep(2.0)
        elif data is not None:
            heard.append(asyncio.get_running_loop().time())
        return data

    monkeypatch.setattr(ToyPipe, "get", slow)

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            rendered = await each.lane.ask(pb.RENDER, b"\x0a\x04\1\0\0\0", 1 << 24)
            assert len(rendered) > 12_000_000
            assert asyncio.get_running_loop().time() > 80
            assert each.server.dials == 1
            assert max(later - earlier for earlier, later in pairwise(heard)) < 5

    sim(main)


@pytest.mark.parametrize(
    ("deadline_s", "travels_as"),
    [(-1.0, 1), (0.0, 1), (1e-5, 1), (1.5, 1500), (1e12, 2**32 - 1), (math.inf, 2**32 - 1)],
)
def test_any_deadline_can_be_asked_for(deadline_s: float, travels_as: int) -> None:
    """Whoever is late already, or never: what travels fits, is never 0, the server's own, and the lane goes on."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            asked = asyncio.ensure_future(each.lane.ask(pb.RENDER, b"", deadline_s=deadline_s))
            await asyncio.sleep(0.01)
            (lane,) = each.server.all_lanes
            assert [request.deadline_ms for request in lane.waiting] == [travels_as]
            each.server.hold_replies = False
            lane.answer_all()
            await asked
            each.step(1)
            await each.owner.have(2)
            assert each.ended is None

    sim(main)


def test_damage_now_and_then_is_no_server_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies without rows are replies, too: they tell that not every stream brings a damaged frame alone."""
    get = ToyPipe.get
    damaged: list[int] = []

    async def flips(pipe: ToyPipe) -> bytes | None:
        data = await get(pipe)
        if data is not None and damaged and pb.Frame.FromString(data).kind == pb.RENDERED:
            damaged.clear()
            data = data[:-20] + bytes([data[-20] ^ 0x40]) + data[-19:]
        return data

    monkeypatch.setattr(ToyPipe, "get", flips)

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            for _ in range(2 * MAX_DAMAGED):
                await each.lane.ask(pb.RENDER, b"")
                damaged.append(1)
                await each.lane.ask(pb.RENDER, b"")
            assert each.owner.resumed == ["bad_frame"] * 2 * MAX_DAMAGED

    sim(main)


def garbage(name: str) -> bytes:
    good = Message(pb.STEP_RESULT, 3, b"x")
    return {
        "empty": b"",
        "no protobuf": b"\xff\xff\xff",
        "no crc": to_frames(good, False)[0],
        "damaged": flip(0, to_frames(good, True)[0][::-1])[::-1],
        "unknown kind": pb.Frame(kind=pb.Kind.ValueType(99)).SerializeToString(),
        "another lane": pb.Frame(kind=pb.PONG, lane=1).SerializeToString(),
    }[name]


@pytest.mark.parametrize("name", ["empty", "no protobuf", "no crc", "damaged"])
def test_a_damaged_frame_costs_the_stream_not_the_lane(name: str) -> None:
    """What the network did to one frame, a new stream repairs: nothing lost, nothing twice."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            each.step(1)
            await asyncio.sleep(0.01)
            each.server.streams[-1].s2c.put(garbage(name))
            each.server.hold_replies = False
            each.server.all_lanes[0].answer_all()
            await each.owner.have(2)
            assert each.owner.resumed == ["bad_frame"]
            assert each.executed == each.rewards == [1]

    sim(main)


def test_a_swallowed_reply_comes_again() -> None:
    """Damage below gRPC can swallow a message: the gap breaks the stream, and the resumed one brings both replies."""

    async def main() -> None:
        async with rig(resumable=True, max_in_flight=4) as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            for value in (1, 2):
                each.step(value)
            await asyncio.sleep(0.01)
            each.server.streams[-1].s2c.put(to_frames(Message(pb.STEP_RESULT, 4, b""), True)[0])
            each.server.hold_replies = False
            each.server.all_lanes[0].answer_all()
            await each.owner.have(3)
            assert each.owner.resumed == ["bad_frame"]
            assert each.executed == each.rewards == [1, 2]

    sim(main)


@pytest.mark.parametrize("name", ["empty", "unknown kind", "another lane"])
def test_a_server_of_garbage_is_given_up(name: str) -> None:
    """A stream that brings the same again is tried a few times, what no retry can mend not at all."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            dials = each.server.dials
            while not each.over.is_set():
                for stream in each.server.streams:
                    stream.s2c.put(garbage(name))
                await asyncio.sleep(0.05)
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "bad_frame"
            assert each.server.dials - dials <= MAX_DAMAGED

    sim(main)


@pytest.mark.parametrize("frame", [Message(pb.STEP_RESULT, 9, b""), Message(pb.STEP, 1, b""), Message(pb.PONG, 4, b"")])
def test_illegal_messages_end_the_lane(frame: Message) -> None:
    """A reply to a request that was never made, a request, a control frame with a seq."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.streams[-1].s2c.put(to_frames(frame, True)[0])
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "protocol"

    sim(main)


def test_a_lost_lane_brings_its_cause() -> None:
    """What the server says of the death is what the owner hears; replies before it are delivered."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.step(1)
            await asyncio.sleep(0.01)
            each.server.lose_lanes("crash(SIGSEGV)")
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "crash(SIGSEGV)"
            assert each.rewards == [1]

    sim(main)


def test_bye_of_the_server_is_a_loss() -> None:
    """The lane did not ask for it."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.push(pb.BYE, pb.Bye(reason="drained").SerializeToString())
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "server_closed"

    sim(main)


def test_leaving_says_bye() -> None:
    """`leave` ends by protocol, `run` returns, and the server keeps nothing."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.lane.leave()
            await each.over.wait()
            assert each.ended is None
            await asyncio.sleep(0.01)
            assert (each.server.byes, each.server.lanes) == (1, {})

    sim(main)


def test_refused_before_opened_is_the_refusal_itself() -> None:
    """BUSY, BAD_KWARGS and the like are no losses: nothing was there to lose."""

    async def main() -> None:
        body = error_body("BUSY", "others hold them", retryable=True, retry_after_ms=700)
        async with rig(refuse_open=body) as each:
            await each.over.wait()
            assert type(each.ended) is ServerRefused
            assert (each.ended.code, each.ended.retry_after_s) == ("BUSY", 0.7)

    sim(main)


def test_no_server_is_a_failed_connection() -> None:
    """A stream that breaks before Opened."""

    async def main() -> None:
        async with rig(up=False) as each:
            await each.over.wait()
            assert type(each.ended) is ConnectionLost

    sim(main)


def test_garbage_before_opened_is_the_peers_fault() -> None:
    """Not a loss, and not a retry."""

    async def main() -> None:
        async with rig(mangle=lambda kind, body: b"\xff") as each:
            await each.over.wait()
            assert type(each.ended) is RemoteProtocolError

    sim(main)


def test_a_bad_action_costs_nothing() -> None:
    """The caller hears of it, nothing was executed, and the next step counts on."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.owner.changed.clear()
            each.step(5000)
            await each.owner.changed.wait()
            each.step(1)
            await each.owner.have(2)
            assert each.owner.refused[0].code == "BAD_ACTION"
            assert each.executed == each.rewards == [1]

    sim(main)


def test_asking_gives_the_body_of_the_reply() -> None:
    """Requests that are no steps have a waiter, in the same order; the end of the lane reaches it."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            body = await each.lane.ask(pb.RENDER, b"")
            assert pb.Rendered.FromString(body).images[0].pixels == b"\x01\x02\x03"
            each.server.hold_replies = True
            asyncio.get_running_loop().call_later(0.1, each.server.lose_lanes, "hang")
            with pytest.raises(LaneLost) as caught:
                await each.lane.ask(pb.RENDER, b"")
            assert caught.value.cause == "hang"

    sim(main)


def test_nothing_is_left_after_a_cancelled_run() -> None:
    """Cancellation closes the transport; no task of the lane survives."""

    async def main() -> None:
        async with ToyServer() as server:
            each = Rig(server, LaneTimers(), True, None)
            before = asyncio.all_tasks()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(each.run())
                await asyncio.sleep(0.1)
                task.cancel()
            assert [stream.closed for stream in server.streams] == [True]
            await asyncio.sleep(0.1)
            assert asyncio.all_tasks() == before

    sim(main)


def test_an_error_reply_reaches_its_asker() -> None:
    """The lane is well: only this request was refused."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.refuse_next = error_body("UNSUPPORTED", "cannot render")
            with pytest.raises(ServerRefused, match="cannot render"):
                await each.lane.ask(pb.RENDER, b"")
            each.step(1)
            await each.owner.have(2)

    sim(main)


@pytest.mark.parametrize("code", ["ENV_FAULT", "INTERNAL", "DEADLINE", "LANE_LOST"])
def test_a_step_without_rows_costs_the_lane(code: str) -> None:
    """Nobody knows what was executed: its slots start anew."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.refuse_next = error_body(code, "it raised", cause="why" if code == "LANE_LOST" else "")
            each.step(1)
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == ("why" if code == "LANE_LOST" else code.lower())

    sim(main)


def test_opened_by_another_version_is_refused() -> None:
    """Whatever Describe said."""

    async def main() -> None:
        skewed = pb.Opened(protocol=pb.Version(major=9)).SerializeToString()
        async with rig(mangle=lambda kind, body: body + skewed) as each:
            await each.over.wait()
            assert isinstance(each.ended, ServerRefused)
            assert each.ended.code == "VERSION_SKEW"

    sim(main)


def test_what_upsets_the_reader_costs_its_lane_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An exception that nobody foresaw ends this lane with a type, and its story is in the log."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)

            def upset() -> None:
                raise ZeroDivisionError("unforeseen")

            each.owner.on_rows = upset
            each.step(1)
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert "unforeseen" in str(each.ended)

    with caplog.at_level(logging.ERROR):
        sim(main)
    assert "ZeroDivisionError" in caplog.text


def test_no_stream_in_time_is_a_failed_connection() -> None:
    """A dial that hangs is given up."""

    async def main() -> None:
        async with rig(timers=LaneTimers(dial_s=3.0), reset=False) as each:
            await each.owner.opened.wait()

            async def hang() -> ToyStream:
                await asyncio.sleep(1e6)
                raise AssertionError

            each.server.open_stream = hang  # type: ignore[method-assign]
            each.server.snap_all()
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert 30 < asyncio.get_running_loop().time() < 45

    sim(main)
