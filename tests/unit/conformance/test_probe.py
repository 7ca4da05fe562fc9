"""asyncrl.conformance.probe: what it sends on demand, and what it does not believe."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.conformance.bench import SEEDS, Bench
from asyncrl.conformance.probe import Ended
from asyncrl.conformance.verdicts import Failed
from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from tests.unit.conformance.tiny_server import DEPTH, ENV, TinyServer


async def test_requests_are_counted_and_replies_acknowledged() -> None:
    """seq grows by one per request, and the next frame carries the ack of what has arrived."""
    async with TinyServer() as server, Bench(server, ENV, {}).lane() as probe:
        assert (probe.seq, probe.ack) == (1, 1)
        rows = await probe.reset(seeds=SEEDS)
        assert rows.obs[0].shape == (2, DEPTH, 3)
        await probe.step([np.zeros(2, np.int64), np.zeros((2, 1), np.float32)])
        assert (probe.seq, probe.ack) == (3, 3)


async def test_another_reply_than_the_due_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors, other kinds, silence and the end of the stream are all told in words."""
    monkeypatch.setattr("asyncrl.conformance.probe.ANSWER_S", 0.1)
    async with TinyServer() as server:
        bench = Bench(server, ENV, {})
        async with bench.lane() as probe:
            with pytest.raises(Failed, match="not ERROR UNSUPPORTED: not here"):
                await probe.answer(pb.RELEASED, await probe.send(pb.RELEASE))
            with pytest.raises(Failed, match="STALE was due, not UNSUPPORTED"):
                await probe.refusal(await probe.send(pb.RELEASE), "STALE")
            with pytest.raises(Failed, match=r"nothing came within 0\.1 s"):
                await probe.receive()
            await probe.send(pb.RESET)
            with pytest.raises(Failed, match="RENDERED to request 9 was due, not STEP_RESULT with seq 4"):
                await probe.answer(pb.RENDERED, 9)
            await probe.send(pb.BYE)
            with pytest.raises(Failed, match="the stream ended"):
                await probe.answer(pb.OPENED, 1)
        async with bench.stream() as probe:
            await probe.send_raw(b"noise")
            with pytest.raises(Failed, match="not ERROR BAD_FRAME"):
                await probe.answer(pb.OPENED, 1)


async def test_illegal_rows_are_not_believed() -> None:
    """A reply whose flags cannot follow the ones before is the peer's fault."""
    async with TinyServer("resets without flags") as server:
        with pytest.raises(RemoteProtocolError, match="flags"):
            async with Bench(server, ENV, {}).lane() as probe:
                await probe.reset(seeds=SEEDS)


async def test_the_end_of_a_stream_is_a_message() -> None:
    """Codes of errors on the way are kept; sending into a stream that is over is nobody's error."""
    async with TinyServer() as server, Bench(server, ENV, {}).stream() as probe:
        await probe.send_raw(b"\xff\xff")
        ended = await probe.end()
        assert "BAD_FRAME" in ended
        await probe.send(pb.BYE)
        assert isinstance(Ended("x").reason, str)
