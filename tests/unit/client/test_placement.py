"""How environments are split over servers and lanes."""

from __future__ import annotations

import itertools

import pytest

from asyncrl.client.placement import MAX_LANES_PER_SERVER, Offer, place, split
from asyncrl.errors import ConfigError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb


def offer(free: int, cores: int = 2, advised: int = 0) -> Offer:
    return Offer("host:1", max(free, 1), free, cores, advised)


TABLE = [
    # offers, num_envs, lanes -> (server, slots) of each lane
    ([offer(64)], 64, None, [(0, 11), (0, 11), (0, 11), (0, 11), (0, 10), (0, 10)]),
    ([offer(64)], 4, None, [(0, 1)] * 4),
    ([offer(64, advised=2)], 9, None, [(0, 5), (0, 4)]),
    ([offer(64)], 8, 2, [(0, 4), (0, 4)]),
    ([offer(64), offer(64)], 8, 2, [(0, 4), (1, 4)]),
    ([offer(64), offer(64)], 9, 3, [(0, 3), (0, 2), (1, 4)]),
    ([offer(64, cores=1), offer(64, cores=3)], 8, 4, [(0, 2), (1, 2), (1, 2), (1, 2)]),
    ([offer(2), offer(64)], 10, 2, [(0, 2), (1, 8)]),
    ([offer(0), offer(8)], 8, 1, [(1, 8)]),
    ([offer(4), offer(8)], 8, 1, [(1, 8)]),
    ([offer(3, cores=1), offer(3, cores=1), offer(3, cores=1)], 9, 3, [(0, 3), (1, 3), (2, 3)]),
]


@pytest.mark.parametrize(("offers", "num_envs", "lanes", "wanted"), TABLE)
def test_the_table(offers: list[Offer], num_envs: int, lanes: int | None, wanted: list[tuple[int, int]]) -> None:
    """Cases worked out by hand."""
    assert [(spot.server, len(spot.fleet_slots)) for spot in place(offers, num_envs, lanes)] == wanted


def test_every_environment_is_placed_once() -> None:
    """Over a grid: fleet slots are 0..N-1 in order, nobody gets more than is free, `lanes` is kept."""
    for frees in itertools.product([0, 1, 3, 10], repeat=3):
        offers = [offer(free, cores) for free, cores in zip(frees, (1, 2, 5), strict=True)]
        for num_envs in range(1, sum(frees) + 1):
            for lanes in (None, 1, 2, 5):
                try:
                    placed = place(offers, num_envs, lanes)
                except (ServerRefused, ConfigError):
                    assert lanes is not None  # too many lanes, or too few to use every server
                    continue
                assert [slot for spot in placed for slot in spot.fleet_slots] == list(range(num_envs))
                for server, free in enumerate(frees):
                    assert sum(len(spot.fleet_slots) for spot in placed if spot.server == server) <= free
                assert all(len(spot.fleet_slots) for spot in placed)
                assert lanes is None or len(placed) == lanes


def test_lanes_of_a_server_are_even() -> None:
    """They differ by at most one slot."""
    for total, parts in itertools.product(range(1, 40), range(1, 9)):
        sizes = split(total, parts)
        assert sum(sizes) == total
        assert max(sizes) - min(sizes) <= 1


def test_no_room_says_what_is_free_where() -> None:
    """A typed CAPACITY with each server's numbers and what to do."""
    offers = [Offer("a:1", 8, 3), Offer("b:1", 4, 0)]
    with pytest.raises(ServerRefused, match=r"a:1: 3 of 8 free, b:1: 0 of 4 free.*--num-envs") as caught:
        place(offers, 4)
    assert caught.value.code == "CAPACITY"


def test_impossible_wishes_are_the_callers() -> None:
    """Numbers that no server could make true."""
    with pytest.raises(ConfigError, match="at least one"):
        place([offer(8)], 0)
    with pytest.raises(ConfigError, match="choose 1 to 4"):
        place([offer(8)], 4, 5)


def test_an_offer_reads_a_description() -> None:
    """A draining server has room for nobody; a server never gets more lanes than a client may have."""
    reply = pb.DescribeReply(capacity=500, used=100, cores=0, advised_lanes=0)
    assert Offer.of("a:1", reply) == Offer("a:1", 500, 400, 1, 0)
    reply.draining = True
    assert Offer.of("a:1", reply).free == 0
    assert Offer("a:1", 500, 500, cores=100).lanes_for(500) == MAX_LANES_PER_SERVER
