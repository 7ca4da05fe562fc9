"""What a check works with: the server, the environment under test, lanes on demand, seeded actions, a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
from gymnasium.vector.utils import batch_space

from asyncrl.client.seams import Connector
from asyncrl.conformance.probe import Probe, probing
from asyncrl.conformance.verdicts import Skipped
from asyncrl.errors import AsyncRLError
from asyncrl.gym_spaces import ValueLayout
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import to_json
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

NUM_SLOTS: Final = 2
SEEDS: Final = (11, 12)
SETTLE_S = 10.0
Action = list[Array]


class Bench:
    """One check's view of the server."""

    def __init__(self, connector: Connector, env: str, kwargs: dict[str, Any]) -> None:
        self.connector = connector
        self.env = env
        self.notes: list[str] = []
        self._kwargs_json = to_json(kwargs, "kwargs") if kwargs else b""

    def note(self, text: str) -> None:
        """Something that was done or seen."""
        self.notes.append(text)

    async def describe(self, env: str = "") -> pb.DescribeReply:
        return await self.connector.describe(pb.DescribeRequest(env=env, kwargs_json=self._kwargs_json if env else b""))

    def open_request(self, **fields: Any) -> pb.Open:
        """An OPEN of the environment under test; `fields` replace what it usually says."""
        slots = fields.pop("slots", NUM_SLOTS)
        usual: dict[str, Any] = {
            "protocol": handshake.version(),
            "run_id": "conformance",
            "env": self.env,
            "kwargs_json": self._kwargs_json,
            "fleet_slots": range(slots),
            "incarnations": [0] * slots,
            "seeds": SEEDS[:slots],
            "run_seed": 1,
            "autoreset": pb.SAME_STEP,
            "per_slot_seeds": True,
            "client": "asyncrl check-server",
        }
        return pb.Open(**{**usual, **fields})

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Probe]:
        """A new stream on which nothing was sent."""
        async with probing(await self.connector.open_stream(), self.connector.with_crc) as probe:
            yield probe

    @asynccontextmanager
    async def lane(self, **fields: Any) -> AsyncIterator[Probe]:
        """An open lane, which gets a BYE in the end."""
        async with self.stream() as probe:
            await probe.open(self.open_request(**fields))
            yield probe
            await probe.send(pb.BYE)

    async def wait_until_served(self) -> None:
        """The server still opens and resets lanes."""
        async with self.lane() as probe:
            await probe.reset(seeds=SEEDS)

    def actions(self, spec: LaneSpec, count: int, slots: int = NUM_SLOTS, seed: int = 5) -> list[Action]:
        """`count` random actions, the same ones each time."""
        layout = ValueLayout(spec.action)
        space = batch_space(layout.space, slots)
        space.seed(seed)
        return [layout.leaves_of(space.sample(), slots) for _ in range(count)]

    async def play(self, probe: Probe, actions: Sequence[Action], seeds: Sequence[int] = SEEDS) -> list[StepRows]:
        """A reset and a step per action: all rows."""
        return [await probe.reset(seeds=seeds), *[await probe.step(action) for action in actions]]


def needs(condition: bool, reason: str) -> None:
    """Raise Skipped(reason) unless the condition holds."""
    if not condition:
        raise Skipped(reason)


def difference(ours: StepRows, theirs: StepRows, rows: Sequence[int] | None = None) -> str:
    """What differs between two replies, in words; empty where nothing does. `rows` limits what is compared."""
    which = np.arange(len(ours.flags)) if rows is None else np.asarray(rows)
    pairs = [("rewards", ours.rewards, theirs.rewards), ("flags", ours.flags, theirs.flags)]
    pairs += [(f"obs[{leaf}]", one, other) for leaf, (one, other) in enumerate(zip(ours.obs, theirs.obs, strict=True))]
    for name, one, other in pairs:
        for row in which:
            if not _equal(one[row], other[row]):
                return f"{name} of row {row}: {_short(one[row])} and {_short(other[row])}"
    if rows is None and len(ours.final_rows):
        for leaf, (one, other) in enumerate(zip(ours.final_obs, theirs.final_obs, strict=True)):
            if not _equal(one, other):
                return f"final_obs[{leaf}]: {_short(one)} and {_short(other)}"
    return ""


def same_obs(one: Sequence[Array], row: int, other: Sequence[Array], other_row: int) -> bool:
    """Whether two rows show the same observation."""
    return all(_equal(a[row], b[other_row]) for a, b in zip(one, other, strict=True))


async def settled(condition: Callable[[], Awaitable[bool]]) -> bool:
    """Whether a condition comes true within SETTLE_S; what raises meanwhile counts as false."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + SETTLE_S
    while loop.time() < ends:
        try:
            if await condition():
                return True
        except AsyncRLError:
            pass
        await asyncio.sleep(0.1)
    return False


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))


def _short(value: Any) -> str:
    text = np.array2string(np.asarray(value), threshold=8, precision=6).replace("\n", " ")
    return text if len(text) < 80 else text[:77] + "..."
