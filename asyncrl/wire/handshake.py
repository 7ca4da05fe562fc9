"""Version and features: who may talk to whom, and what both can do; seeds of recreated slots."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from asyncrl.wire._generated import env_pb2 as pb

MAJOR: Final = 1
MINOR: Final = 0


def version() -> pb.Version:
    return pb.Version(major=MAJOR, minor=MINOR)


def skew(peer: pb.Version, peer_is: str) -> str | None:
    """Why a peer of this version cannot be talked to, saying which side to upgrade; None if it can."""
    if peer.major == MAJOR:
        return None
    older = peer_is if peer.major < MAJOR else ("server" if peer_is == "client" else "client")
    return f"the {peer_is} speaks protocol {peer.major}.{peer.minor}, this side {MAJOR}.{MINOR}: upgrade the {older}"


def common(ours: Iterable[int], theirs: Iterable[int]) -> list[pb.Feature.ValueType]:
    """Features that both sides know, ascending; unknown bits of a newer minor version fall away."""
    known = set(pb.Feature.values())
    return [pb.Feature.ValueType(bit) for bit in sorted(set(ours) & set(theirs) & known) if bit]


def rebuilt_seed(run_seed: int, fleet_slot: int, incarnation: int) -> int:
    """The seed of a slot's incarnation > 0, as section 7 of the proto defines it."""
    packed = b"asyncrl/seed" + struct.pack("<QQQ", run_seed, fleet_slot, incarnation)
    return int.from_bytes(hashlib.sha256(packed).digest()[:8], "little") & 0x7FFF_FFFF
