"""Signed states."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from asyncrl.wire.snapshot_bodies import MAX_STATE_BYTES
from envserver.snapshots import plain, signing
from envserver.snapshots.codec import BadState
from envserver.snapshots.signing import Signer

KEY, HASH = b"k" * 32, b"h" * 32
VALUE = {"x": np.arange(5), "y": (1, "two", None)}


def test_a_sealed_value_opens() -> None:
    """With the same key, spec hash and codec."""
    opened = Signer(KEY, HASH, "ale").open(Signer(KEY, HASH, "ale").seal(VALUE))
    assert plain.dump(opened) == plain.dump(VALUE)


def test_a_flipped_byte_anywhere_is_refused() -> None:
    """In header, value or signature; and nothing is parsed of it."""
    signer = Signer(KEY, HASH, "ale")
    sealed = signer.seal(VALUE)
    with mock.patch.object(plain, "load", side_effect=AssertionError("parsed before it was verified")):
        for at in range(len(sealed)):
            for flip in (1, 128):
                with pytest.raises(BadState, match="signature"):
                    signer.open(sealed[:at] + bytes([sealed[at] ^ flip]) + sealed[at + 1 :])


def test_states_of_another_spec_are_refused() -> None:
    """Another spec hash, codec or key, and lengths that no state has."""
    sealed = Signer(KEY, HASH, "ale").seal(VALUE)
    for other in (Signer(KEY, b"i" * 32, "ale"), Signer(KEY, HASH, "fields")):
        with pytest.raises(BadState, match="another environment"):
            other.open(sealed)
    with pytest.raises(BadState, match="signature"):
        Signer(b"l" * 32, HASH, "ale").open(sealed)
    for data in (b"", sealed[:60], bytes(MAX_STATE_BYTES + 1)):
        with pytest.raises(BadState, match="no exported state"):
            Signer(KEY, HASH, "ale").open(data)


def test_states_have_a_limit() -> None:
    """What would be refused elsewhere does not leave."""
    signer = Signer(KEY, HASH, "ale")
    room = MAX_STATE_BYTES - len(signer.seal(b""))
    sealed = signer.seal(bytes(room))
    assert len(sealed) == MAX_STATE_BYTES
    assert signer.open(sealed) == bytes(room)
    with pytest.raises(BadState, match="may leave"):
        signer.seal(bytes(room + 1))


def test_a_signed_value_that_is_none_is_refused() -> None:
    """A holder of the key who signs nonsense gets BadState, not an error of the parser."""
    signer = Signer(KEY, HASH, "ale")
    head = signer.seal(None)[: -signing._MAC_BYTES - 1]
    for rest in (b"", b"?", b"l\xff\xff\xff\xff"):
        with pytest.raises(BadState, match="not a state"):
            signer.open(head + rest + signer._mac(head + rest))
