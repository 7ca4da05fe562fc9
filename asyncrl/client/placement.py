"""How a wish for N environments is split over servers and lanes; pure.

Invariants: every environment is placed once and no server gets more than it has free
(test_every_environment_is_placed_once); lanes of one server differ by at most one slot
(test_lanes_of_a_server_are_even); where there is not enough room the error says what is free where
(test_no_room_says_what_is_free_where).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from asyncrl.errors import ConfigError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb

# One lane computes while the rows of another travel.
LANES_PER_CORE: Final = 3
MAX_LANES_PER_SERVER: Final = 64


@dataclass(frozen=True)
class Offer:
    """What one server has."""

    address: str
    capacity: int
    free: int
    cores: int = 1
    advised_lanes: int = 0

    @staticmethod
    def of(address: str, reply: pb.DescribeReply) -> Offer:
        free = 0 if reply.draining else max(0, reply.capacity - reply.used)
        return Offer(address, reply.capacity, free, max(1, reply.cores), reply.advised_lanes)

    def with_all(self) -> Offer:
        """As if nobody held a slot: for a learner whose earlier epoch holds them, and gives way."""
        return replace(self, free=self.capacity)

    def lanes_for(self, num_slots: int) -> int:
        """Lanes that `num_slots` are best split over here."""
        wanted = self.advised_lanes or LANES_PER_CORE * self.cores
        return max(1, min(wanted, num_slots, MAX_LANES_PER_SERVER))


@dataclass(frozen=True)
class Placed:
    """One lane to open: the index of its server, and its fleet slots."""

    server: int
    fleet_slots: range


def place(offers: Sequence[Offer], num_envs: int, lanes: int | None = None) -> list[Placed]:
    """Lanes for `num_envs` environments, in fleet order; `lanes` fixes their number over all servers."""
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}: a fleet has at least one environment")
    if lanes is not None and not 1 <= lanes <= num_envs:
        raise ConfigError(f"lanes is {lanes}: choose 1 to {num_envs} (num_envs)")
    if sum(offer.free for offer in offers) < num_envs:
        raise ServerRefused("CAPACITY", no_room(offers, num_envs), retryable=True)
    limit = num_envs if lanes is None else lanes
    # With fewer lanes than servers the roomiest ones are used: a lane cannot be split.
    used = sorted(range(len(offers)), key=lambda index: -offers[index].free)[:limit]
    if sum(offers[index].free for index in used) < num_envs:
        raise ServerRefused("CAPACITY", no_room(offers, num_envs) + f"; lanes={lanes} leaves some servers out")
    shares = _shares([offers[index] for index in used], num_envs)
    slots = {server: share for server, share in zip(used, shares, strict=True) if share}
    counts = _lane_counts(offers, slots, lanes)
    placed: list[Placed] = []
    start = 0
    for server in sorted(slots):
        for size in split(slots[server], counts[server]):
            placed.append(Placed(server, range(start, start + size)))
            start += size
    return placed


def split(total: int, parts: int) -> list[int]:
    """`total` in `parts` that differ by at most one."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def no_room(offers: Sequence[Offer], num_envs: int) -> str:
    """What to tell the user."""
    where = ", ".join(f"{offer.address}: {offer.free} of {offer.capacity} free" for offer in offers)
    return (
        f"{num_envs} environments wanted ({where or 'no server answers'}): "
        "ask for fewer, add servers, or start them with a larger --num-envs"
    )


def _shares(offers: Sequence[Offer], num_envs: int) -> list[int]:
    """Slots of each server: proportional to its cores, bounded by its room; what does not fit goes to the others."""
    shares = [0] * len(offers)
    left = num_envs
    while left:
        open_to = [index for index, offer in enumerate(offers) if shares[index] < offer.free]
        cores = sum(offers[index].cores for index in open_to)
        before = left
        for index in open_to:
            part = min(before * offers[index].cores // cores, offers[index].free - shares[index], left)
            shares[index] += part
            left -= part
        if left == before:  # rounded down to nothing: one each
            for index in open_to[:left]:
                shares[index] += 1
                left -= 1
    return shares


def _lane_counts(offers: Sequence[Offer], slots: dict[int, int], lanes: int | None) -> dict[int, int]:
    if lanes is None:
        return {server: offers[server].lanes_for(slots[server]) for server in slots}
    counts = dict.fromkeys(slots, 1)
    for _ in range(lanes - len(slots)):
        # The next lane goes where lanes are largest.
        largest = max(slots, key=lambda server: slots[server] / counts[server])
        counts[largest] += 1
    return counts
