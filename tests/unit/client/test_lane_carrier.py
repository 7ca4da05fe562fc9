"""Streams that break, and what becomes of their lane: against a ServerLane in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from asyncrl.client.lane_carrier import MAX_DAMAGED, MAX_VAIN
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConnectionLost, LaneLost
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from tests.unit.client.lane_rig import B, Rig, rig, sim
from tests.unit.client.toy_server import ToyPipe, ToyServer, ToyStream


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
            assert await each.loss() == "server_lost"
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
            assert await each.loss() == "server_lost"
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
            assert await each.loss() == "server_lost"
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
            assert await each.loss() == "protocol"
            assert len(each.owner.rows) == 1
            await asyncio.sleep(2.0)
            assert each.server.byes == 1

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


def test_bye_of_the_server_is_a_loss() -> None:
    """The lane did not ask for it."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.push(pb.BYE, pb.Bye(reason="drained").SerializeToString())
            assert await each.loss() == "server_closed"

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


def test_no_server_is_a_failed_connection() -> None:
    """A stream that breaks before Opened."""

    async def main() -> None:
        async with rig(up=False) as each:
            await each.over.wait()
            assert type(each.ended) is ConnectionLost

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


def test_a_lane_that_is_left_while_it_dials_is_not_opened() -> None:
    """The stream comes when nobody wants it any more: it is closed, and nothing of the lane was sent."""

    async def main() -> None:
        async with rig() as each:
            await asyncio.sleep(0)
            assert each.server.dials == 0  # under way
            each.lane.leave()
            async with asyncio.timeout(5):
                await each.over.wait()
            assert each.ended is None
            assert each.server.dials == 1
            assert not each.server.all_lanes

    sim(main)


def test_the_deadline_begins_anew_with_the_resumed_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESUMED took most of it on its way; the request travels only after that, and its server has all of it."""

    async def main() -> None:
        async with rig(timers=LaneTimers(step_s=2.0, grace_s=0.5)) as each:
            await each.owner.have(1)
            dial = each.server.open_stream

            async def held() -> ToyStream:
                stream = await dial()
                stream.s2c.change(held=True)
                return stream

            monkeypatch.setattr(each.server, "open_stream", held)
            each.server.hold_replies = True
            each.step(1)
            await asyncio.sleep(0.1)
            each.server.snap_all()
            await asyncio.sleep(2.0)
            (stream,) = each.server.streams
            stream.s2c.change(held=False)
            await asyncio.sleep(1.9)
            (lane,) = each.server.all_lanes
            lane.answer_all()
            await each.owner.have(2)
            assert each.owner.resumed == ["server_lost"]
            assert each.rewards == [1.0]

    sim(main)
