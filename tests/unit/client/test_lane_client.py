"""One lane against a ServerLane in memory, on virtual time."""

from __future__ import annotations

import asyncio
import logging
import math

import pytest

from asyncrl.errors import (
    LaneLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServerRefused,
)
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, error_body, to_frames
from tests.unit.client.lane_rig import rig, sim
from tests.unit.client.toy_server import EPISODE


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


@pytest.mark.parametrize("frame", [Message(pb.STEP_RESULT, 9, b""), Message(pb.STEP, 1, b""), Message(pb.PONG, 4, b"")])
def test_illegal_messages_end_the_lane(frame: Message) -> None:
    """A reply to a request that was never made, a request, a control frame with a seq."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.server.streams[-1].s2c.put(to_frames(frame, True)[0])
            assert await each.loss() == "protocol"

    sim(main)


def test_a_lost_lane_brings_its_cause() -> None:
    """What the server says of the death is what the owner hears; replies before it are delivered."""

    async def main() -> None:
        async with rig() as each:
            await each.owner.have(1)
            each.step(1)
            await asyncio.sleep(0.01)
            each.server.lose_lanes("crash(SIGSEGV)")
            assert await each.loss() == "crash(SIGSEGV)"
            assert each.rewards == [1]

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
            assert await each.loss() == ("why" if code == "LANE_LOST" else code.lower())

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
