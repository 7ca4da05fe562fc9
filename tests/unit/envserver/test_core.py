"""Admission, describe and drain of the env server's core, over in-memory streams and lane processes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message
from asyncrl.wire.lane_table import LaneState
from envserver.config import Quotas, ServerConfig
from envserver.core import EnvServer
from envserver.registry import Registry, parse_env_option
from tests.unit.envserver.memory_lane import MemoryBackend, MemoryClient, settle


class Rig:
    """A core whose lane processes live in memory."""

    def __init__(self, group: asyncio.TaskGroup, **settings: Any) -> None:
        self.group = group
        self.backends: list[MemoryBackend] = []
        registry = Registry([parse_env_option('toy=CartPole-v1{"$allow": {"size": {"type": "integer"}}}')])
        settings.setdefault("num_envs", 8)
        self.core = EnvServer(ServerConfig(registry=registry, **settings), self.start)
        self.clients: list[MemoryClient] = []
        self.gates: deque[asyncio.Event] = deque()  # each holds up a start, the next one first

    async def start(self) -> MemoryBackend:
        if self.gates:
            await self.gates.popleft().wait()
        self.backends.append(MemoryBackend())
        return self.backends[-1]

    async def dial(self, client: MemoryClient) -> list[Message]:
        """Serve the client's present stream; what it got by then."""
        self.clients.append(client)
        self.group.create_task(self.core.lane(client.stream))
        await settle()
        return client.pump()

    async def open(self, **fields: Any) -> tuple[MemoryClient, Message]:
        client = MemoryClient()
        client.open(**fields)
        (message,) = await self.dial(client)
        return client, message

    async def begin_to_open(self, **fields: Any) -> tuple[MemoryClient, asyncio.Event]:
        """Until it waits for its process, which the event brings."""
        gate = asyncio.Event()
        self.gates.append(gate)
        client = MemoryClient()
        client.open(**fields)
        assert await self.dial(client) == []
        return client, gate


@asynccontextmanager
async def rig(**settings: Any) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as group:
        made = Rig(group, **settings)
        yield made
        for client in made.clients:
            client.stream.to_server.put_nowait(None)
        await settle()


def code_of(message: Message) -> str:
    assert message.kind == pb.ERROR
    return pb.ErrorCode.Name(pb.Error.FromString(message.body).code)


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("VERSION_SKEW", {"protocol": pb.Version(major=handshake.MAJOR + 1)}),
    ("UNKNOWN_ENV", {"env": "nothing"}),
    ("UNKNOWN_ENV", {"env": "os:system"}),
    ("BAD_KWARGS", {"kwargs_json": b'{"colour": 1}'}),
    ("BAD_KWARGS", {"kwargs_json": b'{"size": "large"}'}),
    ("BAD_REQUEST", {"kwargs_json": b"[1]"}),
    ("BAD_REQUEST", {"incarnations": [0, 0]}),
    ("BAD_REQUEST", {"seeds": [1, 2, 3]}),
    ("BAD_REQUEST", {"fleet_slots": [], "incarnations": []}),
    ("CAPACITY", {"fleet_slots": list(range(9)), "incarnations": [0] * 9}),
]


@pytest.mark.parametrize(("code", "fields"), REFUSALS)
async def test_every_refusal_is_typed(code: str, fields: dict[str, Any]) -> None:
    """An Open that cannot be is answered by one ERROR with a code and a text, and takes nothing."""
    async with rig() as made:
        client, message = await made.open(**fields)
        assert code_of(message) == code
        assert message.seq == 1
        assert pb.Error.FromString(message.body).text
        assert client.lane.state is LaneState.CLOSED
        assert not made.backends
        assert not made.core.relays


async def test_a_stream_begins_with_open_or_resume() -> None:
    """Anything else as the first frame is refused; nonsense ends the stream with a failure."""
    async with rig() as made:
        client = MemoryClient()
        client.send([pb.Frame(seq=1, kind=pb.STEP).SerializeToString()])
        made.group.create_task(made.core.lane(client.stream))
        await settle()
        assert pb.Frame.FromString(client.stream.to_client.get_nowait()).kind == pb.ERROR
        garbage = MemoryClient()
        garbage.send([b"\xffgarbage"])
        await made.dial(garbage)
        assert garbage.stream.aborted is not None


async def test_plaintext_tcp_needs_a_crc_from_the_first_frame() -> None:
    """Where a flipped bit could pass unseen, a first frame without a CRC ends the stream."""
    async with rig() as made:
        for with_crc, ends in ((False, True), (True, False)):
            client = MemoryClient(with_crc)
            client.stream.needs_crc = True
            client.open(fleet_slots=[int(with_crc)])
            replies = await made.dial(client)
            assert (client.stream.aborted is not None) == ends
            assert len(replies) == (0 if ends else 1)


async def test_an_unknown_lane_cannot_be_resumed() -> None:
    """RESUME of a lane that is no more is LANE_UNKNOWN."""
    async with rig() as made:
        client, opened = await made.open()
        assert opened.kind == pb.OPENED
        made.core.relays.clear()
        client.hang_up()
        client.dial_again()
        (message,) = await made.dial(client)
        assert code_of(message) == "LANE_UNKNOWN"


async def test_slots_are_reserved_and_come_back() -> None:
    """What one run holds is BUSY for the next, and free as soon as it says BYE."""
    async with rig() as made:
        five = {"fleet_slots": list(range(5)), "incarnations": [0] * 5}
        client, _ = await made.open(run_id="a", **five)
        _, refused = await made.open(run_id="b", **five)
        assert code_of(refused) == "BUSY"
        client.send(client.lane.control(pb.BYE))
        await settle()
        _, opened = await made.open(run_id="b", **five)
        assert opened.kind == pb.OPENED


@pytest.mark.parametrize("resumable", [True, False])
async def test_opened_says_what_the_quotas_are(resumable: bool) -> None:
    """How many requests may be in flight, and how long silence and a broken stream are borne."""
    quotas = Quotas(max_in_flight=7, lease_s=3.0, resume_window_s=5.0)
    async with rig(quotas=quotas) as made:
        _, message = await made.open(resumable=resumable)
        opened = pb.Opened.FromString(message.body)
        assert (opened.max_in_flight, opened.lease_ms) == (7, 3000)
        assert opened.resume_window_ms == (5000 if resumable else 0)


async def test_a_newer_epoch_takes_the_lanes_of_the_run() -> None:
    """The zombie's stream gets FENCED, its process goes, and it cannot come back; other runs are not touched."""
    async with rig() as made:
        zombie, _ = await made.open(learner_epoch=1)
        other, _ = await made.open(run_id="other", fleet_slots=[7])
        heir, opened = await made.open(learner_epoch=2)
        assert opened.kind == pb.OPENED
        assert code_of(zombie.pump()[-1]) == "FENCED"
        assert made.backends[0].closed
        assert not made.backends[1].closed
        _, refused = await made.open(learner_epoch=1)
        assert code_of(refused) == "FENCED"
        assert other.pump() == heir.pump() == []


@pytest.mark.parametrize("end", ["FENCED", "DRAINING_NOW"])
async def test_a_lane_that_is_being_started_is_fenced_too(end: str) -> None:
    """By a newer epoch, or by the drain: its process goes as it comes, and its room is free again."""
    async with rig() as made:
        late, gate = await made.begin_to_open(learner_epoch=1)
        if end == "FENCED":
            _, opened = await made.open(learner_epoch=2, fleet_slots=[1])
            assert opened.kind == pb.OPENED
        else:
            await made.core.drain(0.0)
        before = len(made.backends)
        gate.set()
        await settle()
        assert [code_of(message) for message in late.pump()] == [end]
        assert made.backends[before].closed
        assert made.backends[before].requests == []
        reply = await made.core.describe(pb.DescribeRequest())
        assert reply.used == len(made.core.relays) == before


async def test_crash_after_crash_is_quarantined() -> None:
    """The sixth Open after five crashes of the same slots is refused with a time to wait; other slots are welcome."""
    async with rig() as made:
        for _ in range(5):
            _, opened = await made.open()
            assert opened.kind == pb.OPENED
            made.backends[-1].die("crash(SIGSEGV)")
            await settle()
        _, refused = await made.open()
        assert code_of(refused) == "QUARANTINED"
        assert pb.Error.FromString(refused.body).retry_after_ms > 0
        _, opened = await made.open(fleet_slots=[3])
        assert opened.kind == pb.OPENED


async def test_drain_ends_every_lane_by_bye() -> None:
    """Draining tells the clients, refuses new lanes, lets what runs finish, and ends the rest by BYE."""
    async with rig() as made:
        client, _ = await made.open()
        client.step()
        await settle()
        drain = made.group.create_task(made.core.drain(0.3))
        await settle()
        event = pb.Event.FromString(client.pump()[-1].body)
        assert event.kind == pb.DRAINING
        _, refused = await made.open(fleet_slots=[3])
        assert code_of(refused) == "DRAINING_NOW"
        made.backends[0].answer()
        await drain
        await settle()
        assert [message.kind for message in client.pump()] == [pb.STEP_RESULT, pb.BYE]
        assert made.backends[0].closed


async def test_describe_lists_what_there_is() -> None:
    """Aliases with their schemas, capacity and use; an unknown alias is refused."""
    async with rig() as made:
        await made.open()
        reply = await made.core.describe(pb.DescribeRequest())
        assert (reply.capacity, reply.used, reply.boot_id) == (8, 1, made.core.boot_id)
        assert [offer.alias for offer in reply.envs] == ["toy"]
        assert b"size" in reply.envs[0].kwargs_schema_json
        with pytest.raises(ServerRefused, match="toy"):
            await made.core.describe(pb.DescribeRequest(env="other"))


async def test_describe_builds_one_process_for_all_who_ask() -> None:
    """A spec is found out once, whatever the capacity and however many want it at once."""
    async with rig(num_envs=1) as made:
        asked = [made.group.create_task(made.core.describe(pb.DescribeRequest(env="toy"))) for _ in range(40)]
        await settle(50)
        assert len(made.backends) == 1
        for task in asked:
            task.cancel()


async def test_lanes_per_client_are_bounded() -> None:
    """A client may not split its slots over more lanes than the quota."""
    async with rig(quotas=Quotas(lanes_per_client=2)) as made:
        for slot in range(2):
            await made.open(fleet_slots=[slot])
        _, refused = await made.open(fleet_slots=[2])
        assert code_of(refused) == "CAPACITY"


async def test_run_ends_lanes_whose_client_left() -> None:
    """The ticking of `run` closes a detached lane after its window and forgets it."""
    async with rig(quotas=Quotas(resume_window_s=0.05)) as made:
        ticking = made.group.create_task(made.core.run())
        client, _ = await made.open()
        client.hang_up()
        async with asyncio.timeout(5):
            while made.core.relays:
                await asyncio.sleep(0.02)
        assert made.backends[0].closed
        ticking.cancel()
