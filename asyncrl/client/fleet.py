"""`Fleet`: every lane of every server, as one stream of arrivals; lost lanes come back by themselves.

    async with asyncrl.connect(env="CartPole-v1", num_envs=64, seed=1) as fleet:
        async for arrival in fleet:
            if arrival.rows is not None:
                arrival.lane.step([np.random.randint(0, 2, arrival.lane.num_slots)])

Invariants: each lost lane is one arrival and one event (test_a_loss_is_one_arrival_and_one_event); a fleet serves one
environment: a lane with another spec never contributes a row (test_another_spec_never_contributes_a_row); a fenced
fleet stops (test_a_fenced_fleet_stops); closing leaves no task, stream or lane behind (test_close_leaves_nothing).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from asyncrl.client.fleet_config import FAULTS, FleetConfig, FleetEvent, FleetStats
from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.lane_keeper import LaneKeeper, OpenForm
from asyncrl.client.placement import Offer, place
from asyncrl.client.seams import Clock, Connector, LoopClock, Rng
from asyncrl.client.server_link import ServerLink
from asyncrl.errors import AsyncRLError, ConfigError, ConnectionFailed, LocalProtocolError, ServerRefused, SpecMismatch
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spec import LaneSpec

log = logging.getLogger("asyncrl.fleet")


class Fleet:
    """Use it as an async context manager, or `await open()` and `await close()`."""

    def __init__(
        self,
        connectors: Sequence[Connector],
        config: FleetConfig,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        on_event: Callable[[FleetEvent], None] | None = None,
    ) -> None:
        if not connectors:
            raise ConfigError("a fleet needs at least one server")
        self.config = config
        self.lanes: list[FleetLane] = []
        self.spec: LaneSpec | None = None
        self.on_event = on_event
        self.servers: list[ServerLink] = []
        self._connectors = list(connectors)
        self._clock = clock
        self._rng = rng
        self._spec_hash = b""
        self._arrivals: deque[Arrival] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._group: asyncio.TaskGroup | None = None
        self._keepers: list[LaneKeeper] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_envs(self) -> int:
        return self.config.num_envs

    async def __aenter__(self) -> Fleet:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Ask every server what it has, split the environments over them, and open every lane.

        Raises ConnectionFailed, ServerRefused or SpecMismatch; then, and when cancelled, nothing stays open.
        """
        self._prepare()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        try:
            offers = await self._offers()
            if self.config.learner_epoch and sum(offer.free for offer in offers) < self.config.num_envs:
                # Its own earlier epoch may hold the slots. Whoever else does, the server says so.
                offers = [offer.with_all() for offer in offers]
            simulation = self.config.simulation
            placed = place(offers, self.config.num_envs, self.config.num_envs if simulation else self.config.lanes)
            opened = [
                self._add_lane(number, spot.server, range(0) if simulation else spot.fleet_slots)
                for number, spot in enumerate(placed)
            ]
            for future in opened:
                await self._until(future)
        except BaseException:
            await self.close()
            raise

    def _prepare(self) -> None:
        if self._group is not None:
            raise LocalProtocolError("a fleet is opened once")
        clock = self._clock or LoopClock()
        rng = self._rng or _system_rng()
        self._context = LaneContext(clock, rng, self.config.timers)
        self.stats = FleetStats(self._context)
        timers = self.config.timers
        self.servers = [ServerLink(connector, clock, rng, timers.describe_s) for connector in self._connectors]
        self._form = OpenForm.of(self.config, rng)
        self.run_id = self._form.run_id

    async def _offers(self) -> list[Offer]:
        """One per server that answers."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_caught(server.describe())) for server in self.servers]
        answers = [task.result() for task in tasks]
        failed = [answer for answer in answers if isinstance(answer, AsyncRLError)]
        if failed and (len(failed) == len(answers) or not self.config.allow_partial):
            raise _joined(failed)
        offers = []
        for server, answer in zip(self.servers, answers, strict=True):
            if isinstance(answer, pb.DescribeReply):
                self._check_alias(server, answer)
                offers.append(Offer.of(server.address, answer))
            else:
                offers.append(Offer(server.address, 0, 0))
        return offers

    def _check_alias(self, server: ServerLink, reply: pb.DescribeReply) -> None:
        aliases = [offer.alias for offer in reply.envs]
        if self.config.env not in aliases:
            there = ", ".join(aliases) or "nothing"
            raise ServerRefused("UNKNOWN_ENV", f"{server.address} does not serve {self.config.env!r}, but {there}")

    def _add_lane(self, number: int, server: int, fleet_slots: range) -> asyncio.Future[None]:
        lane = FleetLane(number, fleet_slots, self._form.first_incarnations(fleet_slots), self)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.on_opened = partial(_resolve, opened)
        self.lanes.append(lane)
        keeper = LaneKeeper(lane, self.servers, self.servers[server], self._form, self._context, self)
        self._keepers.append(keeper)
        assert self._group is not None
        self._tasks.append(self._group.create_task(self._guard(keeper.run())))
        return opened

    async def _until(self, opened: asyncio.Future[None]) -> None:
        """Wait for a lane to open, or for the failure of any."""
        while not opened.done():
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            opened.add_done_callback(lambda _: self._notify())
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def _guard(self, coroutine: Coroutine[object, object, None]) -> None:
        """No exception of a lane's task may end the group, which would cancel whoever opened the fleet."""
        try:
            await coroutine
        except Exception as error:
            self.fail(error)

    async def close(self) -> None:
        """Say BYE on every lane and wait for the ends. Idempotent. Cancellation drops the streams without BYE."""
        if self._closed:
            return
        self._closed = True
        self._notify()
        if self._group is None:
            return
        for keeper in self._keepers:
            keeper.close()
        timer = self._context.clock.call_later(2 * self.config.timers.close_s + 1.0, self._cancel_tasks)
        try:
            for keeper, task in zip(self._keepers, self._tasks, strict=True):
                if not keeper.carrying:
                    task.cancel()
            await self._group.__aexit__(None, None, None)
        finally:
            timer.cancel()
            self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------------ arrivals

    async def recv(self) -> Arrival:
        """The next arrival of any lane.

        Raises the error that stopped the fleet (FENCED, no lane up for `give_up_s`), or ServerRefused for a request
        that was the caller's mistake; that lane then waits for a better one. Cancellation loses nothing.
        """
        while not self._arrivals:
            self._check_open()
            if self._waiter is not None:
                raise LocalProtocolError("a fleet has one receiver at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._hand_out()

    def recv_nowait(self) -> Arrival | None:
        """The next arrival if there is one; raises as `recv` does."""
        if self._arrivals:
            return self._hand_out()
        self._check_open()
        return None

    def __aiter__(self) -> Fleet:
        return self

    async def __anext__(self) -> Arrival:
        if self._closed and not self._arrivals:
            raise StopAsyncIteration
        try:
            return await self.recv()
        except LocalProtocolError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise LocalProtocolError("the fleet is closed")
        if self._group is None:
            raise LocalProtocolError("the fleet has not been opened: use `async with`")

    def _hand_out(self) -> Arrival:
        arrival = self._arrivals.popleft()
        if arrival.refused is not None:
            raise arrival.refused
        lane = arrival.lane
        if arrival.lost is not None:
            lane.loss_received()
        lane.incarnation, lane.episode, lane.t = arrival.incarnation, arrival.episode, arrival.t
        return arrival

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------------ what lanes and keepers tell

    def arrived(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def tell(self, event: FleetEvent) -> None:
        if event.kind in FAULTS:
            self.stats.faults[event.kind] += 1
            self.stats.causes[event.cause] += 1
            log.warning(
                "%s lane %d at %s: %s %s", event.kind, event.lane, event.address, event.cause, event.text.split("\n")[0]
            )
        else:
            log.info("%s lane %d at %s: %s", event.kind, event.lane, event.address, event.text)
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:  # the caller's code, on the path of every lane
                log.exception("on_event failed")

    def lane_spec(self, opened: pb.Opened, spec: LaneSpec, address: str) -> None:
        if self.spec is None:
            self.spec, self._spec_hash = spec, opened.spec_hash
            return
        # A hash says more than its spec, such as the arguments of the environment; but it is the server's word alone.
        both = bool(self._spec_hash and opened.spec_hash)
        if spec != self.spec or (both and self._spec_hash != opened.spec_hash):
            raise SpecMismatch(f"{address} serves another {self.config.env!r}: {_difference(self.spec, spec)}")

    def fail(self, error: BaseException) -> None:
        """Nothing more will come: every `recv` from now on raises `error` once the queue is empty."""
        if self._failure is None:
            self._failure = error
        for keeper in self._keepers:
            keeper.close()
        self._notify()

    @property
    def is_starting(self) -> bool:
        """Before every lane has opened once, a failure is the caller's to hear."""
        return any(lane.spec is None for lane in self.lanes)

    @property
    def lanes_up(self) -> int:
        return sum(lane.up for lane in self.lanes)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _caught(describing: Coroutine[object, object, pb.DescribeReply]) -> pb.DescribeReply | AsyncRLError:
    try:
        return await describing
    except AsyncRLError as error:
        return error


def _joined(failed: list[AsyncRLError]) -> AsyncRLError:
    if len(failed) == 1:
        return failed[0]
    stage = next((error.stage for error in failed if isinstance(error, ConnectionFailed)), "")
    return ConnectionFailed("\n".join(str(error) for error in failed), stage)


def _difference(ours: LaneSpec, theirs: LaneSpec) -> str:
    names = ("observation", "action", "mask_size", "stack_leaf", "max_episode_steps", "build")
    found = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    if "build" in found:
        return f"its build is {theirs.build!r}, that of the others {ours.build!r}"
    return f"its {', '.join(found) or 'spec'} differs from that of the other lanes"


def _system_rng() -> Rng:
    import random

    return random.Random()
