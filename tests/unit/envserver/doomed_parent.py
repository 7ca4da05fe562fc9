"""A process that launches lanes, prints the pids of all processes it is responsible for, and waits to be killed.

`python -m tests.unit.envserver.doomed_parent nursery|exec`
"""

from __future__ import annotations

import asyncio
import json
import sys

from envserver.launching import NurseryLauncher, make_launcher
from tests.unit.envserver.wild_env import (
    DAEMON,
    ESCAPED,
    GRANDCHILD,
    HANG,
    HANG_IN_C,
    PLAYER,
    STRANGER,
    LaneDriver,
    registry,
)


async def main(name: str) -> None:
    launcher = make_launcher(name, registry())
    lanes = [LaneDriver(await launcher.start()) for _ in range(3)]
    pids = list(launcher.pids)
    for lane in lanes:
        await lane.open("wild")
    pids.append(int((await lanes[0].step(GRANDCHILD)).obs[0][0, 0]))
    if isinstance(launcher, NurseryLauncher):
        assert launcher.nursery_pid is not None
        pids.append(launcher.nursery_pid)
        pids += [int((await lanes[2].step(way)).obs[0][0, 0]) for way in (ESCAPED, PLAYER, DAEMON, STRANGER)]
        lanes[1].send_step(HANG_IN_C)
    else:
        lanes[1].send_step(HANG)
    await asyncio.sleep(0.2)
    print(json.dumps(pids), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
