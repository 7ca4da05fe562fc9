"""Repeats one simulated run, and shrinks its faults while it still fails.

python -m tests.sim.replay 17                     # run seed 17, print what happened
python -m tests.sim.replay 17 --trace             # with every event
python -m tests.sim.replay 17 --shrink            # the fewest faults with which it fails
python -m tests.sim.replay 17 --faults "s2c.cut:3 lane.hang:0"
python -m tests.sim.replay --from 0 --count 500   # many seeds, failures only
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter

from tests.rig.sim_faults import Fault, describe
from tests.sim.world import World, WorldFailed, run_world


def failure(world: World) -> WorldFailed | None:
    try:
        run_world(world)
    except WorldFailed as failed:
        return failed
    return None


def shrink(world: World, hits: list[Fault]) -> list[Fault]:
    """A minimal list of faults with which the seed still fails: halves first, then single ones."""
    kept = list(dict.fromkeys(hits))
    size = max(len(kept) // 2, 1)
    while True:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if failure(World(world.seed, tuple(fewer), world.fifo, world.steps)) is not None:
                kept = fewer
            else:
                start += size
        if size == 1:
            return kept
        size = max(size // 2, 1)


def run_one(world: World, show_trace: bool, do_shrink: bool) -> int:
    try:
        outcome = run_world(world)
    except WorldFailed as failed:
        if show_trace:
            print("\n".join(failed.trace))
        print(failed)
        if do_shrink:
            print(f"\nshrunk to: --faults {describe(shrink(world, failed.hits))!r}")
        return 1
    if show_trace:
        print("\n".join(outcome.trace))
    print(f"seed {world.seed} passes: {outcome.report}")
    print(f"faults: {describe(outcome.hits)}\nseen by the client: {outcome.faults}, {outcome.duplicates} duplicates")
    digest = hashlib.sha256("\n".join(outcome.trace).encode()).hexdigest()[:16]
    print(f"{outcome.virtual_s:.1f} virtual seconds, {len(outcome.trace)} events, trace {digest}")
    return 0


def run_many(first: int, count: int) -> int:
    began, failed, sites, steps = time.perf_counter(), 0, Counter[str](), 0
    for seed in range(first, first + count):
        try:
            outcome = run_world(World(seed))
        except WorldFailed as error:
            failed += 1
            print(f"{error}\n")
            continue
        sites.update(fault.site for fault in outcome.hits)
        steps += outcome.report.stored
    print(f"{count} seeds, {failed} failed, {steps} transitions, {time.perf_counter() - began:.1f} s")
    print(f"faults: {dict(sites)}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--faults", help="exactly these instead of those of the seed")
    parser.add_argument("--fifo", action="store_true", help="keep asyncio's order of callbacks")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    options = parser.parse_args()
    if options.seed is None:
        return run_many(options.first, options.count)
    only = None if options.faults is None else tuple(map(Fault.parse, options.faults.split()))
    return run_one(World(options.seed, only, options.fifo, options.steps), options.trace, options.shrink)


if __name__ == "__main__":
    sys.exit(main())
