"""Looking ahead: waves of SIMULATE, and giving snapshots back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from asyncrl.conformance.bench import Action, Bench, difference, needs
from asyncrl.conformance.probe import Probe
from asyncrl.conformance.registry import check, expect
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.outcomes import Frames, Outcomes, decode_outcomes
from asyncrl.wire.snapshot_bodies import SimulateEntry, encode_simulate

STEPS: Final = 6
SEED: Final = 21
WISH: Final[dict[str, Any]] = {"slots": 1, "snapshots": True, "scratch": 1}


@asynccontextmanager
async def saved(bench: Bench, *features: pb.Feature.ValueType) -> AsyncIterator[tuple[Probe, list[Action]]]:
    """A lane of one slot that was stepped three times and saved as 1, and actions to go on with."""
    async with bench.stream() as probe:
        opened = await probe.open(bench.open_request(**WISH, features=[pb.SNAPSHOTS, *features]))
        needs(pb.SNAPSHOTS in opened.features, "it does not offer SNAPSHOTS")
        needs(opened.snapshot_support != pb.SNAPSHOT_NONE, "this environment cannot be saved")
        actions = bench.actions(probe.lane_spec, 3 + STEPS, slots=1)
        await probe.reset(seeds=[SEED])
        for action in actions[:3]:
            await probe.step(action)
        body = pb.Snapshot(rows=[0], ids=[1]).SerializeToString()
        reply = parse_body(
            pb.SnapshotResult, (await probe.answer(pb.SNAPSHOT_RESULT, await probe.send(pb.SNAPSHOT, body))).body
        )
        expect([status.code for status in reply.status] == [pb.ENTRY_OK], f"saving gave {list(reply.status)}")
        yield probe, actions[3:]
        await probe.send(pb.BYE)


def entry_of(parent: int, actions: Sequence[Action], **fields: Any) -> SimulateEntry:
    """All the actions, with the luck of the snapshot."""
    joined = [np.concatenate(leaves) for leaves in zip(*actions, strict=True)]
    return SimulateEntry(parent, joined, **{"rng": pb.FROZEN, **fields})


async def simulate(probe: Probe, *entries: SimulateEntry, before: Sequence[Frames | None] | None = None) -> Outcomes:
    """One wave; `before` as in `decode_outcomes`."""
    body = encode_simulate(entries, probe.lane_spec)
    reply = await probe.answer(pb.SIMULATE_RESULT, await probe.send(pb.SIMULATE, body))
    return decode_outcomes(reply.body, probe.lane_spec, [len(entry.actions[0]) for entry in entries], before)


@check("snapshots and search")
async def looking_ahead_touches_no_live_slot(bench: Bench) -> None:
    """After SIMULATE a live slot goes on as one that nobody looked ahead from."""
    # Opened alike: a server may make other environments for lanes that are saved, with luck of their own.
    async with bench.lane(**WISH, features=[pb.SNAPSHOTS]) as reference:
        actions = bench.actions(reference.lane_spec, 3 + STEPS, slots=1)
        wanted = await bench.play(reference, actions, seeds=[SEED])
    async with saved(bench) as (probe, after):
        for seed in range(3):
            resampled = entry_of(1, after, rng=pb.RESAMPLE, seed=seed)
            await simulate(probe, resampled, entry_of(1, after[:1], keep_as=10 + seed))
        for number, action in enumerate(after):
            found = difference(await probe.step(action), wanted[4 + number])
            expect(not found, f"step {number + 1} after looking ahead differs: {found}")
    bench.note(f"three waves, then {STEPS} steps that equal those of a lane without them")


@check("RngMode.FROZEN")
async def a_frozen_look_is_what_the_slot_then_does(bench: Bench) -> None:
    """With FROZEN the outcomes are the rows that the live slot gives for the same actions, at once or by children."""
    async with saved(bench) as (probe, actions):
        whole = await simulate(probe, entry_of(1, actions))
        steps = int(whole.steps[0])
        children = [entry_of(number + 1, actions[number : number + 1], keep_as=number + 2) for number in range(steps)]
        for number, entry in enumerate(children):
            looked = await simulate(probe, entry)
            expect(looked.status[0].ok, f"child {number + 1}: {looked.status[0].code} {looked.status[0].detail}")
            rows = await probe.step(actions[number])
            for name, reward in (("a child", looked.rewards[0, 0]), ("the whole", whole.rewards[0, number])):
                expect(
                    bool(reward == rows.rewards[0]),
                    f"step {number + 1}: the reward is {rows.rewards[0]:g}, and {name} said {reward:g}",
                )
            seen = rows.final_obs if len(rows.final_rows) else rows.obs
            same = all(np.array_equal(ours[0], theirs[0]) for ours, theirs in zip(looked.obs, seen, strict=True))
            expect(same, f"step {number + 1} shows another observation than the look ahead did")
    bench.note(f"{steps} steps, looked at before they were taken")


@check("RngMode.RESAMPLE")
async def a_seed_decides_what_is_resampled(bench: Bench) -> None:
    """RESAMPLE with the same seed gives the same outcome, however often."""
    async with saved(bench) as (probe, actions):
        entries = [entry_of(1, actions, rng=pb.RESAMPLE, seed=seed) for seed in (1, 2)]
        first, second = await simulate(probe, *entries, *entries), await simulate(probe, *entries, *entries)
        for name in ("steps", "rewards", "flags"):
            ours, theirs = getattr(first, name), getattr(second, name)
            same = np.array_equal(ours, theirs) and np.array_equal(ours[:2], ours[2:])
            expect(same, f"{name} of the same seeds differ")
    bench.note("two seeds, four times each")


@check("SimulateOutcome")
async def entries_of_a_wave_fail_alone(bench: Bench) -> None:
    """Each entry has a status of its own: a snapshot that is not there fails its entry, and those beside it succeed."""
    async with saved(bench) as (probe, actions):
        looked = await simulate(probe, entry_of(1, actions[:1]), entry_of(99, actions[:1]), entry_of(1, actions[:1]))
        codes = [status.code for status in looked.status]
        expect(codes == ["OK", "SNAPSHOT_GONE", "OK"], f"statuses are {codes}")
        expect(bool(looked.has_obs[0]), "want_obs was set, but no observation came")
        await probe.step(actions[0])
    bench.note("OK, SNAPSHOT_GONE, OK; the lane still steps")


@check("Release")
async def a_released_snapshot_is_gone(bench: Bench) -> None:
    """RELEASE frees what it names, unknown ids are no error, and entries that begin there are SNAPSHOT_GONE."""
    async with saved(bench) as (probe, actions):
        kept = await simulate(probe, entry_of(1, actions[:1], keep_as=2))
        ended = bool(kept.terminated[0] or kept.truncated[0])
        body = pb.Release(ids=[1, 77]).SerializeToString()
        reply = parse_body(pb.Released, (await probe.answer(pb.RELEASED, await probe.send(pb.RELEASE, body))).body)
        expect(reply.released == 1, f"{reply.released} released; one of the two ids existed")
        looked = await simulate(probe, entry_of(1, actions[:1]), entry_of(2, actions[:1]))
        codes = [status.code for status in looked.status]
        expect(codes[0] == "SNAPSHOT_GONE", f"an entry from a released snapshot is {codes[0]}")
        expect(codes[1] == "OK" or ended, f"an entry from one that was kept is {codes[1]}")
    bench.note("released one of two; the other one stayed")
