"""States that leave their lane: a header, a plain value, and an HMAC-SHA256 over both.

    8 bytes  magic "ASRLSNAP"
    4 bytes  version of this layout, u32
    32 bytes spec hash: alias, kwargs, versions, spaces
    1 + n    name of the codec, after that of the model if there is one: "model:ALIAS/codec"
    n bytes  the plain value (`plain.dump`)
    32 bytes HMAC-SHA256

Invariant: nothing of a state is read before its signature was found good (test_a_flipped_byte_anywhere_is_refused);
a state of another environment is refused (test_states_of_another_spec_are_refused).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any, Final

from asyncrl.wire.snapshot_bodies import MAX_STATE_BYTES
from envserver.snapshots import plain
from envserver.snapshots.codec import BadState

_HEAD: Final = struct.Struct("<8sI32s")
_MAGIC: Final = b"ASRLSNAP"
_VERSION: Final = 1
_MAC_BYTES: Final = 32


class Signer:
    """Of one environment: its spec hash and codec are part of what is signed."""

    def __init__(self, key: bytes, spec_hash: bytes, codec: str) -> None:
        self._key = key
        name = codec.encode()
        self._head = _HEAD.pack(_MAGIC, _VERSION, spec_hash) + bytes((len(name),)) + name

    def seal(self, value: Any) -> bytes:
        """The bytes that may leave. BadState where they would be too many; plain.NotPlain where there are none."""
        data = self._head + plain.dump(value)
        if len(data) + _MAC_BYTES > MAX_STATE_BYTES:
            raise BadState(f"a state of {len(data)} bytes; {MAX_STATE_BYTES} may leave the lane")
        return data + self._mac(data)

    def open(self, sealed: bytes) -> Any:
        """The value that was sealed. BadState for anything that was not, by this key and for this environment."""
        if not _MAC_BYTES + _HEAD.size < len(sealed) <= MAX_STATE_BYTES:
            raise BadState(f"{len(sealed)} bytes are no exported state")
        data, mac = sealed[:-_MAC_BYTES], sealed[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(data)):
            raise BadState("the signature does not fit: changed on its way, or signed with another server's key")
        if not data.startswith(self._head):
            raise BadState("it was exported from another environment, version, codec or model")
        try:
            return plain.load(data[len(self._head) :])
        except plain.BadBytes as error:
            raise BadState(f"not a state: {error}") from None

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, hashlib.sha256)
