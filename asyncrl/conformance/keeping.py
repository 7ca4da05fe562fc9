"""Snapshots and images, for servers that offer them."""

from __future__ import annotations

from asyncrl.conformance.bench import SEEDS, Bench, difference, needs, same_obs
from asyncrl.conformance.probe import Probe
from asyncrl.conformance.registry import check, expect
from asyncrl.conformance.verdicts import Failed, Skipped
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.flags import FIRST, NO_TRANSITION, describe


@check("Snapshot, Restore")
async def a_restored_slot_goes_on_exactly(bench: Bench) -> None:
    """A slot that was saved, stepped and restored gives the same rows again for the same actions, in a new episode."""
    request = bench.open_request(slots=1, snapshots=True, features=[pb.SNAPSHOTS])
    async with bench.stream() as probe:
        opened = await probe.open(request)
        needs(pb.SNAPSHOTS in opened.features, "it does not offer SNAPSHOTS")
        needs(opened.snapshot_support != pb.SNAPSHOT_NONE, "this environment cannot be saved")
        actions = bench.actions(probe.lane_spec, 8, slots=1)
        saved = (await bench.play(probe, actions[:3], SEEDS[:1]))[-1]
        await _save(probe)
        first = [await probe.step(action) for action in actions[3:]]
        t = int(probe.tracker.t[0])
        body = pb.Restore(row=0, id=7, expect_incarnation=0, expect_t=t)
        restored = probe.take_rows(
            await probe.answer(pb.STEP_RESULT, await probe.send(pb.RESTORE, body.SerializeToString()))
        )
        flags = int(restored.flags[0])
        expect(flags == FIRST | NO_TRANSITION, f"the restored row has flags {describe(flags)}")
        expect(same_obs(restored.obs, 0, saved.obs, 0), "the restored row shows another observation than the saved one")
        for number, action in enumerate(actions[3:]):
            found = difference(await probe.step(action), first[number])
            expect(not found, f"step {number + 1} after the restore differs: {found}")
        stale = pb.Restore(row=0, id=7, expect_incarnation=5, expect_t=0).SerializeToString()
        await probe.refusal(await probe.send(pb.RESTORE, stale), "STALE")
        gone = pb.Restore(row=0, id=8, expect_t=int(probe.tracker.t[0])).SerializeToString()
        await probe.refusal(await probe.send(pb.RESTORE, gone), "SNAPSHOT_GONE")
        bench.note(f"{len(first)} steps repeated exactly; support {pb.SnapshotSupport.Name(opened.snapshot_support)}")
        await probe.send(pb.BYE)


async def _save(probe: Probe) -> None:
    body = pb.Snapshot(rows=[0], ids=[7]).SerializeToString()
    reply = await probe.answer(pb.SNAPSHOT_RESULT, await probe.send(pb.SNAPSHOT, body))
    (status,) = parse_body(pb.SnapshotResult, reply.body).status
    if status.code != pb.ENTRY_OK:
        raise Failed(f"the snapshot failed: {pb.EntryCode.Name(status.code)} {status.detail}")


@check("Render")
async def images_have_the_size_they_claim(bench: Bench) -> None:
    """RENDER gives one image per asked row, with height x width x channels bytes of 1 or 3 channels."""
    async with bench.lane() as plain:
        needs(plain.lane_spec.render_mode != "", "the spec names no render_mode")
    async with bench.stream() as probe:
        opened = await probe.open(bench.open_request(render=True, features=[pb.RENDERING]))
        if pb.RENDERING not in opened.features:
            raise Skipped("it does not offer RENDERING")
        await probe.reset(seeds=SEEDS)
        body = pb.Render(rows=(1).to_bytes(4, "little")).SerializeToString()
        seq = await probe.send(pb.RENDER, body)
        try:
            reply = await probe.answer(pb.RENDERED, seq)
        except Failed as failed:
            if "ENV_FAULT" in str(failed):
                raise Skipped(f"the environment itself cannot render: {failed}") from None
            raise
        (image,) = parse_body(pb.Rendered, reply.body).images
        expect(image.row == 1, f"row 1 was asked for, the image is of row {image.row}")
        expect(image.channels in (1, 3), f"the image has {image.channels} channels")
        size = image.height * image.width * image.channels
        expect(
            size == len(image.pixels), f"{len(image.pixels)} bytes for {image.height}x{image.width}x{image.channels}"
        )
        bench.note(f"{image.width}x{image.height}, {image.channels} channels")
        await probe.send(pb.BYE)
