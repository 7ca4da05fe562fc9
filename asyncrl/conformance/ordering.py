"""Order, pipelining, flow, and liveness."""

from __future__ import annotations

from asyncrl.conformance.bench import SEEDS, Bench, difference
from asyncrl.conformance.probe import Ended
from asyncrl.conformance.registry import check, expect
from asyncrl.conformance.verdicts import Failed
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import kind_name, parse_body


@check("3. ORDER")
async def pipelined_steps_come_back_in_order(bench: Bench) -> None:
    """With max_in_flight steps under way, replies come in the order of their requests, with the rows of unhurried
    ones."""
    async with bench.lane() as probe, bench.lane() as reference:
        depth = probe.opened.max_in_flight
        actions = bench.actions(probe.lane_spec, 3 * depth)
        wanted = await bench.play(reference, actions)
        await probe.reset(seeds=SEEDS)
        number = 1
        while actions:
            burst, actions = actions[:depth], actions[depth:]
            for seq, crc in [await probe.send_step(action) for action in burst]:
                rows = probe.take_rows(await probe.answer(pb.STEP_RESULT, seq), crc)
                found = difference(rows, wanted[number])
                expect(not found, f"step {number} differs from the same step made alone: {found}")
                number += 1
        bench.note(f"{number - 1} steps in bursts of {depth}")


@check("3. ORDER (FLOW_VIOLATION)")
async def more_in_flight_than_allowed_is_refused(bench: Bench) -> None:
    """A request beyond max_in_flight unacknowledged ones ends the lane with ERROR FLOW_VIOLATION."""
    async with bench.lane() as probe:
        await probe.reset(seeds=SEEDS)
        body = pb.Step(action=[leaf.tobytes() for leaf in bench.actions(probe.lane_spec, 1)[0]]).SerializeToString()
        # Nothing follows the one too many: gRPC forgets an ERROR not read yet where the stream ends under a write.
        for _ in range(probe.opened.max_in_flight + 1):
            await probe.send(pb.STEP, body)  # `ack` stands still: nothing is received meanwhile
        ended = await probe.end()
        bench.note(f"{probe.opened.max_in_flight + 1} at once: {ended[:200]}")
        expect("FLOW_VIOLATION" in ended, f"FLOW_VIOLATION was due; the stream ended with: {ended[:200]}")
    await bench.wait_until_served()


@check("3. ORDER")
async def replies_are_acknowledged_by_later_requests(bench: Bench) -> None:
    """A lane takes any number of requests, as long as each acknowledges the replies before it."""
    async with bench.lane() as probe:
        count = 4 * probe.opened.max_in_flight
        await bench.play(probe, bench.actions(probe.lane_spec, count))
        bench.note(f"{count} steps, one after the other")


@check("Ping")
async def ping_is_answered_by_pong(bench: Bench) -> None:
    """PING is answered by PONG with its nonce and the highest seq whose reply exists, before the next reply."""
    async with bench.lane() as probe:
        await probe.reset(seeds=SEEDS)
        await probe.send(pb.PING, pb.Ping(nonce=0xFEEDFACECAFE).SerializeToString())
        message = await probe.receive()
        if isinstance(message, Ended):
            raise Failed(f"the stream ended: {message.reason}")
        expect(message.kind == pb.PONG and not message.seq, f"{kind_name(message.kind)} came instead of PONG")
        pong = parse_body(pb.Pong, message.body)
        expect(pong.nonce == 0xFEEDFACECAFE, f"the nonce came back as {pong.nonce:#x}")
        expect(pong.executed == 2, f"executed is {pong.executed} after OPEN and RESET")
        bench.note(f"nonce {pong.nonce:#x}, executed {pong.executed}")
