"""Keeps one fleet lane served: opens it, and after a loss opens it again wherever there is room.

Invariants: a lost lane's environments never return with an incarnation they had before
(test_incarnations_count_every_new_environment); a server that was frozen, and missed the BYE of a lane that was given
up, does not keep its slots from the next lane (test_a_lane_that_was_given_up_is_given_back); a server that says when to
come back is left alone until then (test_retry_after_is_honoured); a server with another environment is not asked again
for a while (test_another_spec_never_contributes_a_row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from asyncrl.client.backoff import Backoff
from asyncrl.client.fleet_config import AUTORESETS, HOSTS, FleetConfig
from asyncrl.client.fleet_lane import FleetLane, as_lane_lost
from asyncrl.client.lane_client import FEATURES, LaneClient
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.placement import Offer
from asyncrl.client.refusals import FATAL, NO_ROOM
from asyncrl.client.seams import Rng
from asyncrl.client.server_link import ServerLink
from asyncrl.errors import AsyncRLError, ConnectionFailed, ServerRefused, SpecMismatch
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.release import VERSION
from asyncrl.wire.requests import ResetRequest, to_json

# Servers that answer, but cannot serve this lane: another spec, a missing alias, a constructor that fails.
BENCH_S: Final = 30.0
BUSY_S: Final = 0.5
# A lane that lived so long was well: after its loss the first attempt comes at once.
STEADY_S: Final = 5.0


class KeeperOwner(Protocol):
    """The fleet, as the keepers of its lanes see it."""

    config: FleetConfig

    @property
    def is_starting(self) -> bool: ...

    @property
    def lanes_up(self) -> int: ...

    def fail(self, error: BaseException) -> None: ...


@dataclass(frozen=True)
class OpenForm:
    """What all Open messages of a fleet have in common, and the seeds."""

    config: FleetConfig
    run_id: str
    run_seed: int
    kwargs_json: bytes

    @staticmethod
    def of(config: FleetConfig, rng: Rng) -> OpenForm:
        run_id = config.run_id or f"{rng.getrandbits(48):012x}"
        run_seed = rng.getrandbits(63) if config.seed is None else config.seed
        return OpenForm(config, run_id, run_seed, to_json(config.kwargs, "env kwargs") if config.kwargs else b"")

    def first_incarnations(self, fleet_slots: Sequence[int]) -> list[int]:
        given = self.config.incarnations
        return [0 if given is None else given[slot] for slot in fleet_slots]

    def seeds(self, lane: FleetLane) -> list[int | None]:
        """Of the first RESET: `seed + i` in incarnation 0, the documented hash later."""
        seeds: list[int | None] = []
        for slot, incarnation in zip(lane.fleet_slots.tolist(), lane.next_incarnation.tolist(), strict=True):
            if incarnation:
                seeds.append(handshake.rebuilt_seed(self.run_seed, slot, incarnation))
            else:
                seeds.append(None if self.config.seed is None else self.config.seed + slot)
        return seeds

    def message(self, lane: FleetLane, seeds: list[int | None]) -> pb.Open:
        config = self.config
        return pb.Open(
            protocol=handshake.version(),
            features=FEATURES,
            run_id=self.run_id,
            learner_epoch=config.learner_epoch,
            member=config.member,
            env=config.env,
            kwargs_json=self.kwargs_json,
            fleet_slots=lane.fleet_slots.tolist(),
            incarnations=lane.next_incarnation.tolist(),
            seeds=[] if None in seeds else [seed or 0 for seed in seeds],
            run_seed=self.run_seed,
            autoreset=AUTORESETS[config.autoreset],
            host=HOSTS[config.host],
            per_slot_seeds=config.per_slot_seeds,
            masked_reset=config.masked_reset,
            resumable=config.resumable,
            render=config.render,
            snapshots=config.snapshots,
            scratch=int(config.snapshots or config.simulation),
            client=f"asyncrl {VERSION}",
        )


class LaneKeeper:
    """`run` keeps `lane` served until `close`."""

    def __init__(
        self,
        lane: FleetLane,
        servers: Sequence[ServerLink],
        first: ServerLink,
        form: OpenForm,
        context: LaneContext,
        owner: KeeperOwner,
    ) -> None:
        self._lane = lane
        self._servers = servers
        self._link = first
        self._form = form
        self._context = context
        self._owner = owner
        self._backoff = Backoff(context.rng)
        self._client: LaneClient | None = None
        self._last: LaneClient | None = None  # the lane that was lost; its server may not know it
        self._down_since = context.clock.now()
        self._closing = False
        self._first = True
        self._not_before: dict[ServerLink, float] = {}  # servers that refused, until they may be asked again

    @property
    def carrying(self) -> bool:
        """Whether a lane is being opened or driven; otherwise `run` only waits and may be cancelled."""
        return self._client is not None

    def close(self) -> None:
        """End the lane by BYE; `run` returns soon."""
        self._closing = True
        if self._client is not None:
            self._client.leave()

    async def run(self) -> None:
        """Returns after `close`, or when the fleet has failed. Cancellation drops the stream without BYE."""
        while not self._closing:
            error = await self._serve_once()
            if error is None or self._closing:
                return
            if self._is_final(error):
                self._owner.fail(error)
                return
            if not await self._find_room(error):
                return

    async def _serve_once(self) -> AsyncRLError | None:
        """Open a lane at the chosen server and drive it to its end; what ended it, None for `close`."""
        lane = self._lane
        seeds = self._form.seeds(lane)
        self._began = self._context.clock.now()
        client = LaneClient(self._link, self._form.message(lane, seeds), lane, self._context, lane.tracker)
        lane.attach(client, self._link.address)
        # One round trip from the dial to the first observations.
        if lane.num_slots and (self._form.config.auto_reset or not self._first):
            client.reset(ResetRequest(None, None if set(seeds) == {None} else seeds, None))
        self._client = client
        try:
            await client.run()
            return None
        except AsyncRLError as error:
            return self._ended(client, error)
        finally:
            self._client = None
            lane.detach()

    def _ended(self, client: LaneClient, error: AsyncRLError) -> AsyncRLError:
        if client.opened is None:
            return error
        self._first, self._last = False, client
        now = self._context.clock.now()
        if now - self._began >= STEADY_S:
            self._backoff.reset()
        self._down_since = now
        lane, unanswered = self._lane, client.unanswered
        lane.detach()
        if not self._closing:
            lane.lost(as_lane_lost(error), unanswered)
        return error

    def _is_final(self, error: AsyncRLError) -> bool:
        if isinstance(error, ServerRefused) and error.code in FATAL:
            return True
        if self._owner.is_starting and self._first:
            return True
        waited_s = self._context.clock.now() - self._down_since
        return waited_s > self._owner.config.give_up_s and not self._owner.lanes_up

    async def _find_room(self, error: AsyncRLError) -> bool:
        """Choose the server for the next attempt, after a pause if the last one failed. False: the fleet failed."""
        self._note(error)
        while not self._closing:
            if self._backoff.failures:
                await self._context.clock.sleep(self._backoff.next_s())
            else:
                self._backoff.next_s()
            found, reason = await self._server_with_room()
            if found is not None:
                self._link = found
                return True
            if self._is_final(reason or error):
                self._owner.fail(reason or error)
                return False
        return False

    def _note(self, error: AsyncRLError) -> None:
        """Remember about the server what its refusal says."""
        pause_s = 0.0
        if isinstance(error, ServerRefused):
            pause_s = error.retry_after_s or (BUSY_S if error.code in NO_ROOM else 0.0 if error.retryable else BENCH_S)
        elif isinstance(error, SpecMismatch):
            pause_s = BENCH_S
        self._not_before[self._link] = self._context.clock.now() + pause_s

    async def _server_with_room(self) -> tuple[ServerLink | None, AsyncRLError | None]:
        """The lane's own server if it answers and has room, else another one; those that did not answer come last."""
        reason: AsyncRLError | None = None
        own = self._link
        for link in sorted(self._servers, key=lambda link: (link.failed, link is not own)):
            if self._context.clock.now() < self._not_before.get(link, 0.0):
                continue
            try:
                reply = await link.describe()
                if self._free(link, reply) < self._room and await self._gave_back(link, reply.boot_id):
                    reply = await link.describe()
            except (ConnectionFailed, ServerRefused) as error:
                reason = error
                continue
            offered = any(offer.alias == self._form.config.env for offer in reply.envs)
            if offered and self._free(link, reply) >= self._room:
                return link, None
        return None, reason

    @property
    def _room(self) -> int:
        """What the lane takes of its server's capacity; a simulation lane has no slots, but an environment."""
        return self._lane.num_slots or 1

    def _free(self, link: ServerLink, reply: pb.DescribeReply) -> int:
        return Offer.of(link.address, reply).free

    async def _gave_back(self, link: ServerLink, boot_id: str) -> bool:
        """Whether the lost lane was given back once more: it may be what takes the room at its server."""
        last = self._last
        if last is None or not last.was_at(link, boot_id):
            return False
        self._last = None
        await last.release()
        link.doubt()
        return True
