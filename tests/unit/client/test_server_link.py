"""What many lanes that wait for one server cost it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asyncrl.client.seams import LoopClock
from asyncrl.client.server_link import MIN_GAP_S, ServerLink
from asyncrl.errors import ConnectionFailed, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import ToyServer


class Counted(ToyServer):
    """Notes when it was asked."""

    def __init__(self, up: bool = True) -> None:
        super().__init__(up=up)
        self._times: list[float] = []

    def asked(self) -> list[float]:
        return self._times

    async def describe(self, _request: pb.DescribeRequest) -> pb.DescribeReply:
        self.asked().append(asyncio.get_running_loop().time())
        return await super().describe(_request)


def link_to(server: ToyServer, describe_s: float = 5.0) -> ServerLink:
    return ServerLink(server, LoopClock(), random.Random(0), describe_s)


def sim(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for seed in range(3):
        run_sim(main, seed)


def test_many_lanes_make_one_attempt_at_a_time() -> None:
    """Sixty-four lanes that try without pause for 20 s: never two attempts within MIN_GAP_S, and ever fewer."""

    async def main() -> None:
        async with Counted(up=False) as server:
            link = link_to(server)

            async def impatient() -> None:
                while asyncio.get_running_loop().time() < 20.0:
                    with pytest.raises(ConnectionFailed):
                        await link.describe()

            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(impatient())
            times = server.asked()
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert min(gaps) >= MIN_GAP_S
            assert max(gaps) <= 2.1
            assert len(times) < 25
            assert link.failed

    sim(main)


def test_waiters_share_a_result() -> None:
    """Those who came while an attempt ran do not make another one, whether it went well or not."""

    async def main() -> None:
        for up in (True, False):
            async with Counted(up=up) as server:
                link = link_to(server)
                outcomes = await asyncio.gather(*(link.describe() for _ in range(10)), return_exceptions=True)
                assert len(server.asked()) == 1
                assert len({id(outcome) for outcome in outcomes}) == 1

    sim(main)


def test_a_description_is_fresh_for_a_moment() -> None:
    """Within MIN_GAP_S it is given again; after that, or after `doubt`, the server is asked."""

    async def main() -> None:
        async with Counted() as server:
            link = link_to(server)
            await link.describe()
            await link.describe()
            assert len(server.asked()) == 1
            await asyncio.sleep(2 * MIN_GAP_S)
            await link.describe()
            assert len(server.asked()) == 2
            link.doubt()
            await link.describe()
            assert len(server.asked()) == 3

    sim(main)


def test_success_forgets_the_failures() -> None:
    """The first pause after a recovery is the shortest again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Counted(up=False) as server:
            link = link_to(server)
            for _ in range(8):
                with pytest.raises(ConnectionFailed):
                    await link.describe()
            server.up = True
            await link.describe()
            server.up = False
            link.doubt()
            with pytest.raises(ConnectionFailed):
                await link.describe()
            start = loop.time()
            with pytest.raises(ConnectionFailed):
                await link.describe()
            assert loop.time() - start < 0.15

    sim(main)


def test_a_cancelled_attempt_leaves_its_turn() -> None:
    """Whoever waits behind it goes on."""

    async def main() -> None:
        async with Counted() as server:
            link = link_to(server)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(link.describe())
                second = group.create_task(link.describe())
                await asyncio.sleep(0.0005)
                first.cancel()
            assert second.result().boot_id == "boot-1"

    sim(main)


class Silent(ToyServer):
    async def describe(self, _request: pb.DescribeRequest) -> pb.DescribeReply:
        await asyncio.sleep(1e6)
        raise AssertionError

    async def open_stream(self) -> Any:
        await asyncio.sleep(1e6)


def test_silence_has_a_deadline() -> None:
    """Neither a description nor a stream is waited for without end."""

    async def main() -> None:
        async with Silent() as server:
            link = link_to(server, describe_s=2.0)
            with pytest.raises(ConnectionFailed, match="Describe within 2 s") as caught:
                await link.describe()
            assert caught.value.stage == "describe"
            with pytest.raises(ConnectionFailed, match="no stream within 3 s"):
                await link.open_stream(3.0)
            assert asyncio.get_running_loop().time() == pytest.approx(5.0)

    sim(main)


def test_another_major_version_is_refused_with_who_to_upgrade() -> None:
    """Before any lane is opened."""

    async def main() -> None:
        for major, who in ((9, "client"), (0, "server")):
            async with ToyServer(major=major) as server:
                with pytest.raises(ServerRefused, match=f"upgrade the {who}") as caught:
                    await link_to(server).describe()
                assert caught.value.code == "VERSION_SKEW"

    sim(main)
