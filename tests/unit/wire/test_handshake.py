"""Versions, features and the seeds of recreated slots."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.handshake import common, rebuilt_seed, skew, version


def peer(major: int, minor: int = 0) -> pb.Version:
    return pb.Version(major=major, minor=minor)


def test_we_speak_1_0() -> None:
    """The version that the golden frames have."""
    assert version() == peer(1, 0)


@pytest.mark.parametrize("minor", [0, 1, 99])
def test_a_minor_version_is_no_skew(minor: int) -> None:
    """The same major version can be talked to."""
    assert skew(peer(1, minor), "client") is None


@pytest.mark.parametrize(
    ("major", "peer_is", "upgrade"),
    [(0, "client", "client"), (2, "client", "server"), (0, "server", "server"), (2, "server", "client")],
)
def test_the_older_side_is_to_be_upgraded(major: int, peer_is: str, upgrade: str) -> None:
    """Either side says the same: who is older, and both versions."""
    text = skew(peer(major, 7), peer_is)
    assert text == f"the {peer_is} speaks protocol {major}.7, this side 1.0: upgrade the {upgrade}"


def test_both_sides_agree_on_who_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server of 1 says of a client of 2, and the client of the server, name the same side."""
    of_the_client = skew(peer(2), "client")
    monkeypatch.setattr(handshake, "MAJOR", 2)
    of_the_server = skew(peer(1), "server")
    assert of_the_client is not None
    assert of_the_server is not None
    assert of_the_client.endswith("upgrade the server")
    assert of_the_server.endswith("upgrade the server")


@given(st.sets(st.integers(0, 80)), st.sets(st.integers(0, 80)))
def test_features_are_what_both_know(ours: set[int], theirs: set[int]) -> None:
    """The intersection of both with the names of this version, ascending, whoever asks."""
    known = {1, 2, 3, 4, 5, 6, 7}
    assert common(ours, theirs) == sorted(ours & theirs & known) == common(theirs, ours)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((0, 0, 1), 125_887_608), ((1, 2, 3), 58_250_794), ((2**64 - 1, 7, 2**40), 1_694_855_802)],
)
def test_rebuilt_seeds_stay_what_they_were(numbers: tuple[int, int, int], expected: int) -> None:
    """Golden values: servers of every version and language give a recreated slot the same seed.

    Reproduce the first: printf 'asyncrl/seed' and 24 bytes, all 0 but the 17th, which is 1, through sha256sum; the
    first 8 bytes little-endian, without the highest bit of the low 32.
    """
    assert rebuilt_seed(*numbers) == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 2**64 - 1))
def test_rebuilt_seeds_are_section_7(run_seed: int, fleet_slot: int, incarnation: int) -> None:
    """The recipe of the proto, number by number; the result is a seed that every environment takes."""
    data = b"asyncrl/seed"
    for number in (run_seed, fleet_slot, incarnation):
        data += bytes(number >> 8 * place & 0xFF for place in range(8))
    digest = hashlib.sha256(data).digest()
    expected = sum(digest[place] << 8 * place for place in range(8)) % 2**31
    assert rebuilt_seed(run_seed, fleet_slot, incarnation) == expected
