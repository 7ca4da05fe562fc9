"""RESUME: a lane that outlives its stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.conformance.bench import SEEDS, Bench, difference, needs
from asyncrl.conformance.probe import Probe
from asyncrl.conformance.registry import check, expect
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body


@asynccontextmanager
async def _resumable(bench: Bench) -> AsyncIterator[Probe]:
    """A stream with a lane that may be resumed; leaving it cuts the stream without BYE."""
    async with bench.stream() as probe:
        opened = await probe.open(bench.open_request(resumable=True, features=[pb.RESUME_LANES]))
        needs(pb.RESUME_LANES in opened.features, "it does not offer RESUME_LANES")
        expect(opened.resume_window_ms > 0, "RESUME_LANES is offered with a window of 0")
        yield probe


def _resume(of: Probe, **fields: object) -> bytes:
    usual = {"lane_id": of.opened.lane_id, "token": of.opened.token, "ack": of.ack, "protocol": handshake.version()}
    message = pb.Resume()
    for name, value in {**usual, **fields}.items():
        if isinstance(value, pb.Version):
            message.protocol.CopyFrom(value)
        else:
            setattr(message, name, value)
    return message.SerializeToString()


async def _resumed(probe: Probe, of: Probe) -> pb.Resumed:
    await probe.send(pb.RESUME, _resume(of))
    probe.seq, probe.ack, probe.opened, probe.spec = of.seq, of.ack, of.opened, of.spec
    probe.num_slots, probe.tracker = of.num_slots, of.tracker
    return parse_body(pb.Resumed, (await probe.answer(pb.RESUMED, 0)).body)


@check("3. RESUME")
async def a_resumed_lane_loses_and_repeats_nothing(bench: Bench) -> None:
    """After a cut stream RESUME brings every reply that was not acknowledged, requests sent again are executed once,
    and the rows are those of a lane whose stream never broke."""
    async with bench.lane() as reference:
        actions = bench.actions(reference.lane_spec, 8)
        wanted = await bench.play(reference, actions)
    async with _resumable(bench) as first:
        await bench.play(first, actions[:2])
        sent = [await first.send_step(action) for action in actions[2:4]]
    async with bench.stream() as second:
        resumed = await _resumed(second, first)
        expect(4 <= resumed.received <= 6, f"RESUMED says {resumed.received} requests arrived; 6 were sent, 4 answered")
        # Both again, as a client would that does not know what arrived: what did must not be executed twice.
        again = pb.Step()
        for (seq, crc), action in zip(sent, actions[2:4], strict=True):
            again.CopyFrom(pb.Step(action=[leaf.tobytes() for leaf in action], action_crc=crc))
            await second.send(pb.STEP, again.SerializeToString(), seq)
        for number, (seq, crc) in enumerate(sent, 3):
            rows = second.take_rows(await second.answer(pb.STEP_RESULT, seq), crc)
            found = difference(rows, wanted[number])
            expect(not found, f"reply {seq} after the resume differs: {found}")
        for number, action in enumerate(actions[4:], 5):
            found = difference(await second.step(action), wanted[number])
            expect(not found, f"step {number} after the resume differs: {found}")
        bench.note(
            f"cut with two steps under way; {resumed.received} of 6 requests had arrived; rows as without the cut"
        )
        await second.send(pb.BYE)


@check("3. RESUME (token)")
async def resuming_needs_the_token(bench: Bench) -> None:
    """RESUME with another token, or of a lane that never was, is ERROR LANE_UNKNOWN, and the lane stays with its
    owner."""
    async with _resumable(bench) as owner:
        await owner.reset(seeds=SEEDS)
        for what, fields in (("another token", {"token": bytes(16)}), ("another lane", {"lane_id": "never-was"})):
            async with bench.stream() as thief:
                await thief.send(pb.RESUME, _resume(owner, **fields))
                await thief.refusal(0, "LANE_UNKNOWN")
                bench.note(f"{what}: LANE_UNKNOWN")
        await owner.step(bench.actions(owner.lane_spec, 1)[0])
        await owner.send(pb.BYE)
    async with bench.stream() as late:
        await late.send(pb.RESUME, _resume(owner))
        await late.refusal(0, "LANE_UNKNOWN")
        bench.note("after BYE: LANE_UNKNOWN")


@check("3. RESUME")
async def a_lane_that_is_not_resumable_ends_with_its_stream(bench: Bench) -> None:
    """Without Open.resumable a cut stream ends the lane: its RESUME is ERROR LANE_UNKNOWN."""
    async with bench.stream() as probe:
        opened = await probe.open(bench.open_request())
        expect(opened.resume_window_ms == 0, f"nobody asked for it, but resume_window_ms is {opened.resume_window_ms}")
        await probe.reset(seeds=SEEDS)
    async with bench.stream() as late:
        await late.send(pb.RESUME, _resume(probe))
        error = await late.refusal(0, "LANE_UNKNOWN", "UNSUPPORTED")
        bench.note(f"ERROR {pb.ErrorCode.Name(error.code)}")
