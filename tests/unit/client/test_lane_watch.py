"""What the timer of a lane finds: silence, stalls, overdue replies, and its own loop's lag."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncrl.client.timing import LaneTimers
from asyncrl.errors import (
    ConnectionFailed,
)
from asyncrl.wire._generated import env_pb2 as pb
from tests.unit.client.lane_rig import rig, sim


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
            assert await each.loss() == "stalled"

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
            assert await each.loss() == "deadline"
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
            assert each.context.loop_lag.max_s > 15.0

    sim(main)


def test_whoever_steps_needs_no_pings() -> None:
    """Every frame of ours keeps the lease and carries the ack."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            frames = each.context.counters.frames_out
            for number in range(60):
                each.step(number)
                await asyncio.sleep(1.0)
            assert each.context.counters.frames_out - frames == 60

    sim(main)


def test_an_answer_that_waits_unread_is_an_answer() -> None:
    """A ping is out when our own loop stands still; its answer is there afterwards, not read yet."""

    async def main() -> None:
        async with rig(address="127.0.0.1:1") as each:
            await each.owner.have(1)
            pipe = each.server.streams[0].s2c
            pipe.change(held=True)
            await asyncio.sleep(3.0)
            loop: Any = asyncio.get_running_loop()
            loop.pass_time(20.0)
            await asyncio.sleep(1.0)
            pipe.change(held=False)
            await asyncio.sleep(5.0)
            assert each.owner.resumed == []

    sim(main)
