"""Frames of one stream on their way out: how many may wait, and what becomes of them."""

from __future__ import annotations

import asyncio

import pytest

from envserver import outbox as outbox_module
from envserver.outbox import Outbox


class Sink:
    """Takes what an outbox writes, one frame a turn of the loop."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def write(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        self.written.append(frame)


async def test_what_waits_is_written_before_it_closes() -> None:
    """`close` lets the frames that are waiting out."""
    outbox, sink = Outbox(), Sink()
    outbox.put([b"a", b"b"])
    outbox.close()
    await outbox.drain_to(sink.write)
    assert sink.written == [b"a", b"b"]


async def test_a_waiting_writer_is_woken_by_frames_and_by_the_end() -> None:
    """Frames put while it waits, and while it writes, go out in order; a late `close` ends it."""
    outbox, sink = Outbox(), Sink()
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(outbox.drain_to(sink.write))
        for frames in ([b"a"], [b"b", b"c"]):
            await asyncio.sleep(0)
            outbox.put(frames)
        for _ in range(10):
            await asyncio.sleep(0)
        assert sink.written == [b"a", b"b", b"c"]
        assert not writer.done()
        outbox.close()
    assert writer.done()


async def test_a_full_outbox_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message goes in whole while no more than the limit wait; beyond it nothing of a message is taken."""
    monkeypatch.setattr(outbox_module, "MAX_OUTBOX", 2)
    outbox, sink = Outbox(), Sink()
    assert outbox.put([b"a", b"b"])
    assert outbox.put([b"c", b"d"])
    assert not outbox.put([b"e"])
    outbox.close()
    await outbox.drain_to(sink.write)
    assert sink.written == [b"a", b"b", b"c", b"d"]
    assert outbox.put([b"f"])
