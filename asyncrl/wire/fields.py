"""Large protobuf fields put together by hand: protobuf copies a field several times, a join copies it once.

Invariant: the bytes are those that protobuf itself writes (test_joined_fields_are_what_protobuf_writes).
"""

from __future__ import annotations

from typing import Final

_LENGTH_DELIMITED: Final = 2


def bytes_field_head(number: int, size: int) -> bytes:
    """What precedes the `size` bytes of field `number`, which is below 16."""
    head = bytearray((number << 3 | _LENGTH_DELIMITED,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)
