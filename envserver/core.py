"""The env server without gRPC: admission of lanes, their relays, drain. The simulation runs this very class.

Invariants: every refusal is one typed error (test_every_refusal_is_typed); draining refuses new lanes and
ends the old ones by Bye (test_drain_ends_every_lane_by_bye); a newer epoch and a drain reach lanes whose process is
still being started (test_a_lane_that_is_being_started_is_fenced_too).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader, Message, kind_name, parse_body, to_frames
from asyncrl.wire.release import VERSION
from asyncrl.wire.requests import from_json, to_json
from envserver.config import ServerConfig, usable_cores
from envserver.descendants import memory_of
from envserver.describing import Specs
from envserver.opening import num_slots_of
from envserver.preparing import Berth, Start, WarmPool, berths
from envserver.refusals import refusal_body, stopping
from envserver.relay import LaneIdentity, Relay, RelayLimits
from envserver.seams import FrameStream, LaneBackend
from envserver.tenancy import Budget, Quarantine, Tenancy

log = logging.getLogger("envserver.core")

TICK_S: Final = 0.1
LATE_S: Final = 0.25  # a tick that is later was held up by this process
MEMORY_CHECK_TICKS: Final = 20
FIRST_FRAME_S: Final = 10.0
SERVER_NAME: Final = f"asyncrl envserver {VERSION}"
FEATURES: Final = (pb.RESUME_LANES, pb.FRAME_STACK, pb.SNAPSHOTS, pb.EXPORTS, pb.RENDERING, pb.SOFT_ENDS, pb.CHANGES)

# Causes that are nobody's crash.
_PEACEFUL: Final = ("exit(0)",)


class EnvServer:
    """All lanes of one env server process."""

    def __init__(self, config: ServerConfig, start: Start) -> None:
        self.config = config
        self.boot_id = secrets.token_hex(8)
        self.draining = False
        self.relays: dict[str, Relay] = {}
        self._loop = asyncio.get_running_loop()
        self._start = start
        quotas = config.quotas
        self._tenancy = Tenancy(config.num_envs, quotas.lanes_per_client)
        self._quarantine = Quarantine(Budget(), self._loop.time)
        self._limits = RelayLimits(
            max_in_flight=quotas.max_in_flight, lease_s=quotas.lease_s, resume_window_s=quotas.resume_window_s
        )
        self._specs = Specs(start)
        self._berths: dict[str, Berth] = {}
        self.warm_pool: WarmPool | None = None
        if config.warm:
            places = berths(list(config.registry.aliases), config.num_envs, config.advised_lanes)
            self.warm_pool = WarmPool(start, places)

    # ------------------------------------------------------------------ lanes

    async def lane(self, stream: FrameStream) -> None:
        """Serve one stream. Cancellation counts as a broken stream."""
        reader = FrameReader(expect_crc=True if stream.needs_crc else None)
        patience = self._loop.call_later(FIRST_FRAME_S, _cancel_current_task())
        try:
            first = await _first_message(stream, reader)
        except RemoteProtocolError as error:
            await stream.abort(error.code, str(error))
            return
        finally:
            patience.cancel()
        if first is None:
            return
        try:
            relay = await self._admit(first)
        except (ServerRefused, RemoteProtocolError) as error:
            for frame in to_frames(_refusal(first, error), bool(reader.crc)):
                await stream.write(frame)
            return
        await relay.carry(stream, reader, first)

    async def _admit(self, first: Message) -> Relay:
        if first.kind == pb.RESUME:
            return self._resumed(parse_body(pb.Resume, first.body))
        if first.kind != pb.OPEN:
            raise RemoteProtocolError(f"a stream begins with OPEN or RESUME, not {kind_name(first.kind)}")
        return await self._opened(parse_body(pb.Open, first.body))

    def _resumed(self, resume: pb.Resume) -> Relay:
        relay = self.relays.get(resume.lane_id)
        if relay is None or relay.closed:
            raise ServerRefused("LANE_UNKNOWN", "that lane is no more: open a new one")
        refused = relay.resume_refused(resume)
        if refused is not None:
            raise ServerRefused(*refused)
        return relay

    async def _opened(self, request: pb.Open) -> Relay:
        slots = self._check(request)
        identity = LaneIdentity(
            run_id=request.run_id,
            learner_epoch=request.learner_epoch,
            member=request.member,
            env=request.env,
            fleet_slots=tuple(request.fleet_slots),
            resumable=request.resumable,
        )
        if self._tenancy.fence(request.run_id, request.learner_epoch):
            self._fence_older(request.run_id, request.learner_epoch)
        self._quarantine.check(identity.place)
        self._tenancy.take(request.run_id, request.member, identity.room)
        try:
            backend, berth = await self._process_for(request, slots)
        except BaseException:
            self._tenancy.give_back(request.run_id, request.member, identity.room)
            raise
        relay = Relay(backend, identity, self._limits, self.boot_id, self._on_closed)
        self.relays[relay.lane_id] = relay
        if berth is not None:
            self._berths[relay.lane_id] = berth
        return relay

    async def _process_for(self, request: pb.Open, slots: int) -> tuple[LaneBackend, Berth | None]:
        """A prepared lane process with its berth, or a new one. Cancelled or refused, it leaves none."""
        kwargs = from_json(request.kwargs_json, "env kwargs")
        lent = self.warm_pool.take(request.env, kwargs, slots) if self.warm_pool is not None else None
        if lent is not None:
            return lent
        backend = await self._start()
        try:
            # There was no relay yet that a newer epoch could have fenced meanwhile, or a drain ended by Bye.
            self._tenancy.fence(request.run_id, request.learner_epoch)
            self._refuse_in_a_drain()
        except ServerRefused:
            backend.close()
            raise
        return backend, None

    def _refuse_in_a_drain(self) -> None:
        if self.draining:
            raise stopping()

    def _check(self, request: pb.Open) -> int:
        """Everything about an Open that needs no environment; the number of its slots."""
        text = handshake.skew(request.protocol, "client")
        if text is not None:
            raise ServerRefused("VERSION_SKEW", text)
        self._refuse_in_a_drain()
        alias = self.config.registry.get(request.env)
        alias.check_kwargs(from_json(request.kwargs_json, "env kwargs"))
        return num_slots_of(request)

    def _fence_older(self, run_id: str, epoch: int) -> None:
        for relay in list(self.relays.values()):
            if relay.identity.run_id == run_id and relay.identity.learner_epoch < epoch:
                relay.fence(epoch)

    def _on_closed(self, relay: Relay, reason: str) -> None:
        identity = relay.identity
        self._tenancy.give_back(identity.run_id, identity.member, identity.room)
        if relay.lost is not None and relay.lost not in _PEACEFUL:
            self._quarantine.crashed(identity.place)
        berth = self._berths.pop(relay.lane_id, None)
        if berth is not None and self.warm_pool is not None:
            self.warm_pool.give_back(berth)
        log.info("lane %s (%s) closed: %s", relay.lane_id, identity.env, reason)
        if relay.closed:
            self.relays.pop(relay.lane_id, None)

    # ------------------------------------------------------------------ describe

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        """What this server offers; with an alias, its spec too, for which a lane process may have to be built."""
        registry = self.config.registry
        reply = pb.DescribeReply(
            protocol=handshake.version(),
            server=SERVER_NAME,
            boot_id=self.boot_id,
            capacity=self._tenancy.capacity,
            used=self._tenancy.used,
            advised_lanes=self.config.advised_lanes,
            cores=usable_cores(),
            features=FEATURES,
            draining=self.draining,
        )
        for name in [request.env] if request.env else registry.aliases:
            alias = registry.get(name)
            schema = to_json(alias.kwargs_schema, "kwargs schema")
            reply.envs.append(pb.EnvOffer(alias=name, summary=alias.summary, kwargs_schema_json=schema))
        if request.env:
            registry.get(request.env).check_kwargs(from_json(request.kwargs_json, "env kwargs"))
            opened = await self._specs.of(request.env, request.kwargs_json)
            reply.envs[0].spec.CopyFrom(opened.spec)
            reply.envs[0].spec_hash = opened.spec_hash
        return reply

    # ------------------------------------------------------------------ time and ends

    async def run(self) -> None:
        """Deadlines, leases and memory of every lane, until cancelled.

        A server that stood still itself (stopped, swapped out, a virtual machine that moved) blames nobody for it.
        """
        ticks = 0
        due = self._loop.time()
        while True:
            due += TICK_S
            await asyncio.sleep(TICK_S)
            ticks += 1
            now = self._loop.time()
            late_s, due = now - due, now
            for relay in list(self.relays.values()):
                if late_s > LATE_S:
                    relay.forgive(late_s)
                relay.tick(now)
                if relay.closed:
                    self.relays.pop(relay.lane_id, None)
                elif (ticks + relay.pid) % MEMORY_CHECK_TICKS == 0:  # some lanes a tick, not all of them in one
                    self._check_memory(relay)

    def _check_memory(self, relay: Relay) -> None:
        if memory_of(relay.pid) > self.config.quotas.lane_memory_bytes:
            relay.condemn("memory")

    async def drain(self, within_s: float) -> None:
        """Refuse new lanes, tell the clients, wait for them to leave, then end what is left by Bye."""
        self.draining = True
        ends = self._loop.time() + within_s
        event = pb.Event(kind=pb.DRAINING, text="the server is stopping", deadline_ms=int(within_s * 1000))
        for relay in self.relays.values():
            relay.event(event.SerializeToString())
        await self._wait(ends, lambda: not any(relay.attached for relay in self.relays.values()))
        await self._wait(ends, lambda: all(relay.idle for relay in self.relays.values()))
        for relay in list(self.relays.values()):
            relay.bye("drained")
        if self.warm_pool is not None:
            self.warm_pool.close()

    async def _wait(self, until: float, reached: Callable[[], bool]) -> None:
        # `reached` looks at many relays, each of which changes on its own: a tick is soon enough for a drain.
        while not reached() and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S / 2)


def _cancel_current_task() -> Callable[[], object]:
    task = asyncio.current_task()
    assert task is not None
    return task.cancel


async def _first_message(stream: FrameStream, reader: FrameReader) -> Message | None:
    while (data := await stream.read()) is not None:
        message = reader.feed(data)
        if message is not None:
            return message
    return None


def _refusal(first: Message, error: ServerRefused | RemoteProtocolError) -> Message:
    """ERROR as the answer to a first frame: the reply to OPEN, a control frame otherwise."""
    seq = first.seq if first.kind == pb.OPEN else 0
    return Message(pb.ERROR, seq, refusal_body(error))
