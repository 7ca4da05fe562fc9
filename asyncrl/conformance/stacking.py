"""Observations that are told by less: stacks by their newest frames, arrays by what changed in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncrl.conformance.bench import SEEDS, Bench, difference, needs, same_obs
from asyncrl.conformance.looking import entry_of, saved, simulate
from asyncrl.conformance.probe import Probe
from asyncrl.conformance.registry import check, expect
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.outcomes import Frames, Outcomes
from asyncrl.wire.snapshot_bodies import SimulateEntry
from asyncrl.wire.step_rows import StepRows

STEPS: Final = 30
NO_STACK: Final = "no leaf of its observations is a stack of frames"
NOT_OFFERED: Final = "it does not offer FRAME_STACK"


def _needs_stacks(probe: Probe) -> None:
    needs(probe.lane_spec.stack_leaf is not None, NO_STACK)
    needs(pb.FRAME_STACK in probe.opened.features, NOT_OFFERED)


@check("FRAME_STACK, StepResult")
async def newest_frames_make_the_stacks_that_are_sent_whole(bench: Bench) -> None:
    """With FRAME_STACK a lane shows what it shows without: within episodes, at their ends and after resets."""
    async with bench.lane(features=[pb.FRAME_STACK]) as probe:
        _needs_stacks(probe)
        found = await _played_twice(bench, probe)
    async with bench.lane() as whole:
        _expect_same(bench, found, await _played_twice(bench, whole), "whose stacks came whole")


@check("CHANGES, StepResult.changed")
async def changes_make_what_is_sent_whole(bench: Bench) -> None:
    """With CHANGES a lane shows what it shows without, and with FRAME_STACK as well where it has that, too."""
    for features in ([pb.CHANGES], [pb.CHANGES, pb.FRAME_STACK]):
        async with bench.lane(features=features) as probe:
            needs(pb.CHANGES in probe.opened.features, "it does not offer CHANGES")
            found = await _played_twice(bench, probe)
        async with bench.lane() as whole:
            _expect_same(bench, found, await _played_twice(bench, whole), "that came whole")


async def _played_twice(bench: Bench, probe: Probe) -> list[StepRows]:
    """What was shown before a reset must not shine through."""
    actions = bench.actions(probe.lane_spec, STEPS)
    return [rows for seeds in (SEEDS, SEEDS[::-1]) for rows in await bench.play(probe, actions, seeds)]


def _expect_same(bench: Bench, found: list[StepRows], wanted: list[StepRows], whose: str) -> None:
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        differs = difference(ours, theirs)
        expect(not differs, f"reply {number + 1} differs from one {whose}: {differs}")
    bench.note(f"{len(found)} replies, {sum(len(rows.final_rows) for rows in found)} ends of episodes")


@check("SimulateEntry.newest_frames")
async def newest_frames_of_a_look_end_in_the_stack_that_it_shows(bench: Bench) -> None:
    """A look with newest_frames tells the stack that the same look shows without, by one step and by several."""
    async with saved(bench, pb.FRAME_STACK) as (probe, actions):
        _needs_stacks(probe)
        parent = await _shown(probe, [entry_of(1, actions[:1], keep_as=2)], [None])
        needs(not (parent.terminated[0] or parent.truncated[0]), "the episode ended with the first look")
        after = [actions[1 : 1 + count] for count in range(1, len(actions))]
        wanted = await _shown(probe, [entry_of(2, each) for each in after])
        entries = [entry_of(2, each, newest_frames=True) for each in after]
        found = await _shown(probe, entries, parent.stacks * len(after))
        for number, each in enumerate(after):
            same = same_obs(found.obs, number, wanted.obs, number)
            expect(same, f"a look of {len(each)} steps shows another observation than without newest_frames")
    bench.note(f"looks of 1 to {len(after)} steps")


async def _shown(
    probe: Probe, entries: Sequence[SimulateEntry], before: Sequence[Frames | None] | None = None
) -> Outcomes:
    """A wave of which every look shows something: those that fail would all be the same."""
    found = await simulate(probe, *entries, before=before)
    for number, status in enumerate(found.status):
        expect(status.ok, f"look {number + 1} of {len(entries)} is {status.code}: {status.detail}")
    expect(bool(found.has_obs.all()), "want_obs was set, but no observation came")
    return found
