"""Frames that are none. The stream that brought one ends, and the server serves on."""

from __future__ import annotations

from asyncrl.conformance.bench import SEEDS, Bench, needs
from asyncrl.conformance.registry import check, expect
from asyncrl.conformance.verdicts import Failed
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import CHUNK_BYTES, Message, to_frames

MANY_BYTES = 64 * 1024 * 1024


async def _ends_the_stream(bench: Bench, what: str, frames: list[bytes], in_mid_lane: bool) -> None:
    async with bench.stream() as probe:
        if in_mid_lane:
            await probe.open(bench.open_request())
            await probe.reset(seeds=SEEDS)
        for frame in frames:
            await probe.send_raw(frame)
        try:
            ended = await probe.end()
        except Failed:
            raise Failed(f"{what}: the stream lives on; it has to end") from None
        bench.note(f"{what}: {ended[:120]}")


@check("2. TRANSPORT (BAD_FRAME)")
async def malformed_frames_end_their_stream_alone(bench: Bench) -> None:
    """Bytes that are no Frame end the stream that they came on, first or in mid-lane; other lanes go on."""
    truncated = to_frames(Message(pb.OPEN, 1, bench.open_request().SerializeToString()), False)[0][:-3]
    cases = {"noise": b"\xff\x00\xfe noise", "an empty message": b"", "half a frame": truncated}
    async with bench.lane() as healthy:
        await healthy.reset(seeds=SEEDS)
        for what, data in cases.items():
            for in_mid_lane in (False, True):
                await _ends_the_stream(
                    bench, f"{what}, {'in mid-lane' if in_mid_lane else 'first'}", [data], in_mid_lane
                )
        await healthy.step(bench.actions(healthy.lane_spec, 1)[0])
    await bench.wait_until_served()


@check("2. TRANSPORT, Kind")
async def frames_out_of_place_end_their_stream(bench: Bench) -> None:
    """A kind of the future, a server's kind, a skipped seq and a STEP before OPEN end the stream."""
    crc = bench.connector.with_crc
    step = pb.Step().SerializeToString()
    cases = {
        "kind 99": (Message(99, 3, b""), True),
        "STEP_RESULT from a client": (Message(pb.STEP_RESULT, 3, b""), True),
        "seq 9 where 3 is due": (Message(pb.STEP, 9, step, 2), True),
        "OPEN twice": (Message(pb.OPEN, 3, bench.open_request().SerializeToString(), 2), True),
        "an ack of a reply that was never sent": (Message(pb.STEP, 3, step, 40), True),
        "STEP first": (Message(pb.STEP, 1, step), False),
    }
    for what, (message, in_mid_lane) in cases.items():
        await _ends_the_stream(bench, what, to_frames(message, crc), in_mid_lane)
    await bench.wait_until_served()


@check("2. TRANSPORT (FRAME_TOO_BIG)")
async def a_body_without_end_is_refused(bench: Bench) -> None:
    """A body that grows past anything the lane's spec allows ends the stream long before it is complete."""
    async with bench.stream() as probe:
        await probe.open(bench.open_request())
        await probe.reset(seeds=SEEDS)
        size = max(MANY_BYTES, 8 * probe.lane_spec.action.nbytes)
        part = to_frames(Message(pb.STEP, 3, bytes(2 * CHUNK_BYTES), 2), bench.connector.with_crc)[0]
        for _ in range(size // CHUNK_BYTES):
            await probe.send_raw(part)
        ended = await probe.end()
        bench.note(f"after at most {size // 2**20} MiB: {ended[:120]}")
    await bench.wait_until_served()


@check("4. INTEGRITY")
async def a_damaged_frame_never_passes(bench: Bench) -> None:
    """A frame whose crc does not fit ends the stream; what it carried is not executed."""
    needs(bench.connector.with_crc, "TLS and Unix sockets carry no crc")
    async with bench.stream() as probe:
        await probe.open(bench.open_request())
        await probe.reset(seeds=SEEDS)
        action = [leaf.tobytes() for leaf in bench.actions(probe.lane_spec, 1)[0]]
        frame = to_frames(Message(pb.STEP, 3, pb.Step(action=action).SerializeToString(), 2), True)[0]
        damaged = pb.Frame.FromString(frame)
        damaged.crc ^= 0x10
        await probe.send_raw(damaged.SerializeToString())
        message = await probe.end()
        expect("STEP_RESULT" not in message, "the damaged frame was answered")
        bench.note(f"one bit of the crc flipped: {message[:120]}")
    await bench.wait_until_served()
