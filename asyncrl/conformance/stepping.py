"""RESET, STEP, and what the rows say: flags, observations, seeds, autoreset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from asyncrl.conformance.bench import NUM_SLOTS, SEEDS, Action, Bench, difference, needs, same_obs
from asyncrl.conformance.probe import Probe
from asyncrl.conformance.registry import check, expect
from asyncrl.conformance.verdicts import Failed, Skipped
from asyncrl.gym_spaces import ValueLayout
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED, describe
from asyncrl.wire.step_rows import StepRows

SHORT: Final = 30
LONG: Final = 1500  # steps in which an episode of most environments ends
ENDS: Final = TERMINATED | TRUNCATED


def _flags(rows: StepRows, row: int | np.integer[Any]) -> str:
    return describe(int(rows.flags[row]))


@check("6. FLAGS")
async def reset_begins_episodes(bench: Bench) -> None:
    """RESET gives FIRST|NO_TRANSITION, reward 0 and a first observation of the space in every row."""
    async with bench.lane() as probe:
        rows = await probe.reset(seeds=SEEDS)
        layout = ValueLayout(probe.lane_spec.observation)
        for row in range(NUM_SLOTS):
            expect(rows.flags[row] == FIRST | NO_TRANSITION, f"row {row} has flags {_flags(rows, row)} after RESET")
            expect(rows.rewards[row] == 0, f"row {row} has reward {rows.rewards[row]} without a transition")
            expect(
                layout.space.contains(_member(layout, rows, row)), f"the observation of row {row} is not of its space"
            )
        bench.note(f"{NUM_SLOTS} first observations of {layout.space}")


def _member(layout: ValueLayout, rows: StepRows, row: int) -> object:
    return layout.row(rows.obs, row)


@check("6. FLAGS, 5. ARRAYS")
async def rows_are_legal(bench: Bench) -> None:
    """Every row of a step has legal flags in a legal order, finite rewards, and arrays of the size that the spec says;
    the reply echoes the action's CRC."""
    async with bench.lane() as probe:
        await probe.reset(seeds=SEEDS)
        seen: dict[str, int] = {}
        for action in bench.actions(probe.lane_spec, 200):
            rows = await probe.step(action)
            expect(bool(np.isfinite(rows.rewards).all()), f"rewards {rows.rewards} are not finite")
            for row in range(NUM_SLOTS):
                seen[_flags(rows, row)] = seen.get(_flags(rows, row), 0) + 1
                if rows.flags[row] & NO_TRANSITION:
                    expect(rows.rewards[row] == 0, f"row {row} has a reward without a transition")
        bench.note(f"400 rows: {seen}")


@check("7. SEEDS")
async def equal_seeds_give_equal_rows(bench: Bench) -> None:
    """Two lanes with equal seeds and equal actions give equal rows, also after a second seeded RESET."""
    async with bench.lane() as one, bench.lane() as other:
        actions = bench.actions(one.lane_spec, SHORT)
        first = await bench.play(one, actions)
        for name, again in (
            ("another lane", await bench.play(other, actions)),
            ("again", await bench.play(one, actions)),
        ):
            for number, (ours, theirs) in enumerate(zip(first, again, strict=True)):
                found = difference(ours, theirs)
                expect(not found, f"reply {number} differs ({name}): {found}")
        third = await bench.play(other, actions, seeds=[seed + 1000 for seed in SEEDS])
        changed = any(difference(ours, theirs) for ours, theirs in zip(first, third, strict=True))
        bench.note(
            f"{len(first)} replies are equal three times; other seeds give {'other' if changed else 'the same'} rows"
        )


@check("6. FLAGS (same_step)")
async def final_and_first_observations_are_true(bench: Bench) -> None:
    """Where same_step ends an episode, the final observation is the one that next_step shows in that row, and the
    observation is the one that next_step shows after it."""
    async with bench.lane() as same:
        actions = bench.actions(same.lane_spec, LONG)
        rows, end, steps = await _first_end(bench, same, actions)
    finals = rows.final_rows.tolist()
    try:
        async with bench.lane(autoreset=pb.NEXT_STEP) as following:
            needs(following.opened.host == same.opened.host, "another host serves next_step, with other dynamics")
            ended = (await bench.play(following, actions[:steps]))[-1]
            after = await following.step(actions[steps - 1])
    except Failed as error:
        raise Skipped(f"it has no next_step to compare with: {error}") from None
    for number, row in enumerate(finals):
        expect(bool(ended.flags[row] & ENDS), f"next_step does not end row {row} at step {end}, same_step does")
        expect(
            (ended.flags[row] ^ rows.flags[row]) & ENDS == 0,
            f"row {row} ends as {_flags(rows, row)} here and as {_flags(ended, row)} in next_step",
        )
        expect(ended.rewards[row] == rows.rewards[row], f"the last reward of row {row} differs between the modes")
        expect(
            same_obs(rows.final_obs, number, ended.obs, row), f"final_obs of row {row} is not its true last observation"
        )
        expect(same_obs(rows.obs, row, after.obs, row), f"obs of row {row} is not the next episode's first observation")
        expect(after.flags[row] == FIRST | NO_TRANSITION, f"next_step goes on with {_flags(after, row)}")
    bench.note(f"rows {finals} ended at step {end} as {[_flags(rows, row) for row in finals]}")


async def _first_end(bench: Bench, probe: Probe, actions: list[Action]) -> tuple[StepRows, int, int]:
    await probe.reset(seeds=SEEDS)
    for number, action in enumerate(actions):
        rows = await probe.step(action)
        if len(rows.final_rows):
            return rows, number, number + 1
    raise Skipped(f"no episode ended within {len(actions)} random steps")


@check("6. FLAGS (TRUNCATED)")
async def the_step_limit_truncates(bench: Bench) -> None:
    """An episode that reaches the spec's max_episode_steps ends there with TRUNCATED; none is longer."""
    async with bench.lane() as probe:
        limit = probe.lane_spec.max_episode_steps
        needs(limit > 0, "the spec names no max_episode_steps")
        needs(limit <= LONG, f"max_episode_steps is {limit}")
        await probe.reset(seeds=SEEDS)
        counts, truncated, terminated = np.zeros(NUM_SLOTS, int), 0, 0
        for action in _until(bench, probe, 3 * limit):
            rows = await probe.step(action)
            counts += (rows.flags & NO_TRANSITION) == 0
            for row in np.flatnonzero(rows.flags & ENDS):
                kind = TRUNCATED if counts[row] == limit else TERMINATED
                if rows.flags[row] & SOFT:
                    continue
                if counts[row] == limit and rows.flags[row] & TERMINATED:
                    terminated += 1  # it may really have ended there, but not every time
                else:
                    expect(bool(rows.flags[row] & kind), f"{_flags(rows, row)} after {counts[row]} steps of {limit}")
                    truncated += counts[row] == limit
                counts[row] = 0
            expect(int(counts.max()) < limit, f"an episode goes on after {limit} steps")
            if truncated:
                bench.note(f"an episode was truncated after {limit} steps")
                return
        expect(not terminated, f"{terminated} episodes of {limit} steps ended as TERMINATED, none as TRUNCATED")
        raise Skipped(f"no episode reached its limit of {limit} steps")


def _until(bench: Bench, probe: Probe, count: int) -> Iterator[Action]:
    actions = bench.actions(probe.lane_spec, 50)
    for number in range(count):
        yield actions[number % 50]


@check("Reset.mask")
async def a_masked_reset_touches_its_rows_alone(bench: Bench) -> None:
    """RESET with a mask begins an episode in the masked rows; the others repeat their observation, and go on as if
    nothing had been."""
    async with bench.lane(masked_reset=True, autoreset=pb.DISABLED) as probe:
        needs(probe.opened.masked_reset, "OPENED says that it cannot")
        actions = bench.actions(probe.lane_spec, 4)
        seeds, before = await _undisturbed(bench, probe, actions[:3])
        rows = await probe.reset(np.array([True, False]), seeds)
        after = await probe.step(actions[3])
    expect(rows.flags[0] == FIRST | NO_TRANSITION, f"the masked row has flags {_flags(rows, 0)}")
    expect(rows.flags[1] == NO_TRANSITION, f"the row outside the mask has flags {_flags(rows, 1)}")
    expect(same_obs(rows.obs, 1, before.obs, 1), "the row outside the mask shows another observation than before")
    async with bench.lane(masked_reset=True, autoreset=pb.DISABLED) as reference:
        undisturbed = (await bench.play(reference, actions, seeds))[-1]
        again = await reference.reset(seeds=seeds)
    found = difference(after, undisturbed, [1])
    expect(not found, f"the row outside the mask does not go on where it was: {found}")
    expect(same_obs(rows.obs, 0, again.obs, 0), "the masked row was not reset with its seed")
    bench.note("row 0 began anew, row 1 went on")


async def _undisturbed(bench: Bench, probe: Probe, actions: list[Action]) -> tuple[tuple[int, ...], StepRows]:
    """Seeds with which no episode ends during these actions, and the rows behind the last."""
    for attempt in range(20):
        seeds = tuple(seed + 100 * attempt for seed in SEEDS)
        played = await bench.play(probe, actions, seeds)
        if not any((rows.flags & ENDS).any() for rows in played):
            return seeds, played[-1]
    raise Skipped(f"with twenty seeds an episode ended within {len(actions)} steps")


@check("6. FLAGS, 7. SEEDS")
async def a_reset_in_mid_episode_begins_anew(bench: Bench) -> None:
    """A seeded RESET in mid-episode gives the first observations of those seeds, and the steps after it follow them."""
    async with bench.lane() as probe:
        actions = bench.actions(probe.lane_spec, 8)
        first = await bench.play(probe, actions[:4])
        second = await bench.play(probe, actions[:4])
    for number, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        found = difference(ours, theirs)
        expect(not found, f"reply {number} after the second reset differs: {found}")
    bench.note("the second reset repeated the first, with the four steps after it")


@check("Autoreset.DISABLED")
async def without_autoreset_an_ended_row_waits(bench: Bench) -> None:
    """With autoreset disabled an ended row shows its last observation with NO_TRANSITION until RESET begins it anew."""
    try:
        async with bench.lane(autoreset=pb.DISABLED) as probe:
            await probe.reset(seeds=SEEDS)
            for action in bench.actions(probe.lane_spec, LONG):
                rows = await probe.step(action)
                ended = np.flatnonzero(rows.flags & ENDS)
                if len(ended):
                    await _waits(bench, probe, rows, int(ended[0]), action)
                    return
    except Failed as error:
        if "UNSUPPORTED" in str(error):
            raise Skipped("it has no disabled autoreset") from None
        raise
    raise Skipped(f"no episode ended within {LONG} random steps")


async def _waits(bench: Bench, probe: Probe, ended: StepRows, row: int, action: Action) -> None:
    expect(not ended.flags[row] & FIRST, f"flags {_flags(ended, row)}: a new episode began without a RESET")
    for _ in range(2):
        rows = await probe.step(action)
        expect(rows.flags[row] == NO_TRANSITION, f"the step after the end has flags {_flags(rows, row)}")
        expect(same_obs(rows.obs, row, ended.obs, row), "the waiting row shows another observation than its last")
    rows = await probe.reset(seeds=SEEDS)
    expect(rows.flags[row] == FIRST | NO_TRANSITION, f"RESET of the ended row gave {_flags(rows, row)}")
    bench.note(f"row {row} ended as {_flags(ended, row)}, waited for two steps, and was reset")
