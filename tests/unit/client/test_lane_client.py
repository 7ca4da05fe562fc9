"""One lane against a ServerLane in memory, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from asyncrl.client.lane_client import MAX_DAMAGED, LaneClient
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.seams import LoopClock
from asyncrl.client.server_link import ServerLink
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import (
    AsyncRLError,
    ConnectionFailed,
    ConnectionLost,
    LaneLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServerRefused,
)
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, error_body, to_frames
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import EPISODE, ToyServer

B = 3


class Owner:
    """Notes what the lane tells."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.changed = asyncio.Event()
        self.rows: list[tuple[StepRows, Array, Array]] = []
        self.refused: list[ServerRefused] = []
        self.resumed: list[str] = []
        self.events: list[pb.Event] = []
        self.on_rows: Callable[[], None] = lambda: None

    def lane_opened(self, opened: pb.Opened, spec: LaneSpec) -> None:
        self.opened.set()

    def rows_arrived(self, rows: StepRows, episode: Array, t: Array) -> None:
        self.rows.append((rows, episode, t))
        self.changed.set()
        self.on_rows()

    def request_refused(self, error: ServerRefused) -> None:
        self.refused.append(error)
        self.changed.set()

    def lane_resumed(self, cause: str) -> None:
        self.resumed.append(cause)

    def lane_event(self, event: pb.Event) -> None:
        self.events.append(event)

    async def have(self, count: int) -> None:
        """Until so many replies with rows have come."""
        while len(self.rows) < count:
            self.changed.clear()
            await self.changed.wait()


class Rig:
    """One lane, its server, and how it ended."""

    def __init__(self, server: ToyServer, timers: LaneTimers, resumable: bool, tracker: RowTracker | None) -> None:
        clock = LoopClock()
        self.server = server
        self.owner = Owner()
        self.context = LaneContext(clock, random.Random(0), timers)
        request = pb.Open(
            protocol=handshake.version(),
            run_id="run",
            env="toy",
            fleet_slots=range(B),
            incarnations=[0] * B,
            resumable=resumable,
        )
        link = ServerLink(server, clock, random.Random(1))
        self.lane = LaneClient(link, request, self.owner, self.context, tracker or RowTracker(B))
        self.ended: AsyncRLError | None = None
        self.over = asyncio.Event()

    async def run(self) -> None:
        try:
            await self.lane.run()
        except AsyncRLError as error:
            self.ended = error
        finally:
            self.over.set()

    def step(self, number: int) -> None:
        self.lane.step([np.full(B, number, np.int64)])

    @property
    def executed(self) -> list[int]:
        """First slot's actions, of every lane in order."""
        return [action[0] for lane in self.server.all_lanes for action in lane.executed]

    @property
    def rewards(self) -> list[float]:
        return [float(rows.rewards[0]) for rows, _, _ in self.owner.rows[1:]]


def rig(
    *,
    timers: LaneTimers | None = None,
    resumable: bool = True,
    tracker: RowTracker | None = None,
    reset: bool = True,
    **server: Any,
) -> AbstractAsyncContextManager[Rig]:
    """A lane that runs, with its first RESET under way."""

    @asynccontextmanager
    async def make() -> Any:
        async with ToyServer(**server) as toy:
            each = Rig(toy, timers or LaneTimers(), resumable, tracker)
            if reset:
                each.lane.reset(ResetRequest(None, None, None))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(each.run())
                try:
                    yield each
                finally:
                    each.lane.leave()
                    task.cancel()

    return make()


def sim(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Under three schedules."""
    for seed in range(3):
        run_sim(main, seed)


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


def test_silence_keeps_the_lease_by_pings() -> None:
    """A client that trains for a minute is heard every two seconds, and acks what it has."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            frames = each.context.counters.frames_out
            await asyncio.sleep(60.0)
            assert 25 <= each.context.counters.frames_out - frames <= 31
            (lane,) = each.server.all_lanes
            assert lane.protocol.cached_bytes == 0

    sim(main)


def test_a_stalled_peer_is_found_and_resumed_elsewhere_in_time() -> None:
    """Connected but silent: the stream is given up after the limit, and a new one carries on where it was."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with rig(address="127.0.0.1:1") as each:
            await each.owner.have(1)
            each.server.streams[0].hole()
            each.step(1)
            start = loop.time()
            await each.owner.have(2)
            assert 10.0 < loop.time() - start < 14.0
            assert each.owner.resumed == ["stalled"]
            assert each.executed == each.rewards == [1]

    sim(main)


def test_a_stalled_peer_that_cannot_resume_is_lost_as_stalled() -> None:
    """The cause is the silence, not the break that the client made of it."""

    async def main() -> None:
        async with rig(address="127.0.0.1:1", resumable=False) as each:
            await each.owner.have(1)
            each.server.streams[0].hole()
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "stalled"

    sim(main)


def test_a_busy_lane_is_not_stalled() -> None:
    """A step that takes 25 s is answered by pings meanwhile: no false death."""

    async def main() -> None:
        async with rig(address="127.0.0.1:1", hold_replies=True) as each:
            await asyncio.sleep(0.1)
            each.server.all_lanes[0].answer_all()
            await each.owner.have(1)
            each.step(1)
            await asyncio.sleep(25.0)
            each.server.all_lanes[0].answer_all()
            await each.owner.have(2)
            assert each.owner.resumed == []

    sim(main)


def test_an_overdue_reply_ends_the_lane() -> None:
    """The server should have killed the lane at its deadline; a little later the client gives it up, by BYE."""

    async def main() -> None:
        async with rig(timers=LaneTimers(step_s=30.0, grace_s=5.0)) as each:
            await each.owner.have(1)
            each.server.hold_replies = True
            start = asyncio.get_running_loop().time()
            each.step(1)
            await each.over.wait()
            assert isinstance(each.ended, LaneLost)
            assert each.ended.cause == "deadline"
            assert 35.0 <= asyncio.get_running_loop().time() - start < 37.0
            assert each.server.byes == 1

    sim(main)


def test_open_has_a_deadline_of_its_own_that_progress_renews() -> None:
    """Building counts as progress; a server that builds nothing is given up."""

    async def main() -> None:
        async with rig(timers=LaneTimers(open_s=20.0), hold_replies=True) as each:
            for step in range(10):
                await asyncio.sleep(10.0)
                each.server.push(pb.EVENT, pb.Event(kind=pb.BUILDING, step=step).SerializeToString())
            assert not each.over.is_set()
            await each.over.wait()
            assert isinstance(each.ended, ConnectionFailed)
            assert "OPEN" in str(each.ended)
            assert [event.step for event in each.owner.events] == list(range(10))

    sim(main)


def test_a_stalled_loop_blames_nobody() -> None:
    """Twenty seconds in which our own loop ran nothing: the answers that wait in its queues still count."""

    async def main() -> None:
        async with rig(address="127.0.0.1:1", timers=LaneTimers(step_s=5.0, grace_s=1.0)) as each:
            await each.owner.have(1)
            for _ in range(3):
                await asyncio.sleep(2.1)  # a ping is out now and then
                each.step(1)
                loop: Any = asyncio.get_running_loop()
                loop.pass_time(20.0)  # what a blocking call does to a loop's clock
                await each.owner.have(len(each.owner.rows))
                await asyncio.sleep(0.5)
            await each.owner.have(4)
            assert each.owner.resumed == []
            assert each.ended is None
            assert each.context.loop_lag_max_s > 15.0

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
