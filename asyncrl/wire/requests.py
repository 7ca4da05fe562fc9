"""Bodies of RESET and STEP, and the checks an action has to pass before an environment sees it.

Invariants: `check_actions` accepts every action of the space and refuses NaN and anything outside
a countable space (test_actions_out_of_the_space_are_refused). Boxes are not clipped: what lies
outside their bounds is the environment's to treat, as in Gymnasium. JSON is the strict one, up to
64 KiB (test_json_of_the_peer_is_strict).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from asyncrl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.spaces import Leaf, Node, SpaceSpec, read_leaves
from asyncrl.wire.tensors import Array

MAX_JSON_BYTES: Final = 64 * 1024


class ResetRequest(NamedTuple):
    """`mask` `[B]` or None for all rows; `seeds[b]` None where unseeded."""

    mask: Array | None
    seeds: list[int | None] | None
    options: dict[str, Any] | None


def encode_reset(request: ResetRequest) -> bytes:
    message = pb.Reset()
    if request.mask is not None:
        message.mask = tensors.to_bytes(request.mask.astype(np.bool_))
    if request.seeds is not None and any(seed is not None for seed in request.seeds):
        wrong = next((seed for seed in request.seeds if seed is not None and not 0 <= seed < 1 << 64), None)
        if wrong is not None:
            raise LocalProtocolError(f"seed {wrong} is not within 0..2**64-1")
        message.seeds.extend(seed or 0 for seed in request.seeds)
        if None in request.seeds:
            message.seeded = bytes(seed is not None for seed in request.seeds)
    if request.options:
        message.options_json = to_json(request.options, "reset options")
    return message.SerializeToString()


def decode_reset(body: bytes, num_slots: int) -> ResetRequest:
    message = parse_body(pb.Reset, body)
    boolean = np.dtype(np.bool_)
    try:
        mask = tensors.from_bytes(message.mask, boolean, (num_slots,), "reset mask") if message.mask else None
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), "BAD_REQUEST") from None
    seeds: list[int | None] | None = None
    if message.seeds:
        if len(message.seeds) != num_slots or len(message.seeded) not in (0, num_slots):
            raise RemoteProtocolError(f"{len(message.seeds)} seeds for {num_slots} slots", "BAD_REQUEST")
        seeds = list(message.seeds)
        for row in np.flatnonzero(np.frombuffer(message.seeded, np.uint8) == 0):
            seeds[row] = None
    return ResetRequest(mask, seeds, from_json(message.options_json, "reset options") or None)


def encode_step(action: Sequence[Array], leaves: Sequence[Leaf], num_slots: int) -> tuple[bytes, int]:
    """The body of STEP and the CRC that its reply must echo. Shapes and dtypes have to fit exactly."""
    if len(action) != len(leaves):
        raise LocalProtocolError(f"{len(action)} action arrays where the space has {len(leaves)} leaves")
    parts, crc = [], 0
    for array, leaf in zip(action, leaves, strict=True):
        if array.dtype != leaf.dtype or array.shape != (num_slots, *leaf.shape):
            raise LocalProtocolError(
                f"action{f' {leaf.path!r}' if leaf.path else ''} is {array.dtype}{list(array.shape)}; "
                f"the lane wants {leaf.dtype}{[num_slots, *leaf.shape]}"
            )
        part = tensors.to_bytes(array)
        crc = zlib.crc32(part, crc)
        parts.append(part)
    return pb.Step(action=parts, action_crc=crc).SerializeToString(), crc


def decode_step(body: bytes, leaves: Sequence[Leaf], num_slots: int) -> tuple[list[Array], int]:
    """Action arrays `[B, *leaf.shape]` and their CRC, which is checked."""
    message = parse_body(pb.Step, body)
    try:
        action = read_leaves(message.action, leaves, num_slots, "action")
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), "BAD_ACTION") from None
    crc = 0
    for part in message.action:
        crc = zlib.crc32(part, crc)
    if crc != message.action_crc:
        raise RemoteProtocolError("action_crc does not fit the action", "BAD_ACTION")
    return action, crc


def check_actions(action: Sequence[Array], space: SpaceSpec) -> str | None:
    """What is wrong with the values of an action, naming row and leaf; None when nothing is."""
    number = 0
    for index, node in enumerate(space.nodes):
        if not node.is_leaf:
            continue
        is_text = node.kind == pb.TEXT
        wrong = _wrong_texts(action[number : number + 2], node) if is_text else _wrong_rows(action[number], node)
        if wrong is not None and wrong.any():
            row = int(np.argmax(wrong))
            name = f" {space.path(index)!r}" if space.path(index) else ""
            shown = "no text" if is_text else action[number][row]
            return f"action{name} of row {row} is {shown}, outside {_range_of(node)}"
        number += 2 if is_text else 1
    return None


def _wrong_rows(array: Array, node: Node) -> Array | None:
    """b1 `[B]`, or None where none is wrong."""
    if node.kind == pb.DISCRETE:
        wrong = (array < node.start) | (array >= node.start + node.n)
    elif node.kind == pb.MULTI_DISCRETE and node.nvec is not None:
        start = 0 if node.nvec_start is None else node.nvec_start
        wrong = (array < start) | (array >= start + node.nvec)
    elif node.kind == pb.MULTI_BINARY:
        wrong = (array != 0) & (array != 1)
    elif node.kind == pb.BOX and array.dtype.kind == "f":
        wrong = np.isnan(array)
    else:
        return None
    if not np.count_nonzero(wrong):
        return None
    return np.asarray(np.asarray(wrong).reshape(len(array), math.prod(array.shape[1:])).any(axis=1))


def _wrong_texts(leaves: Sequence[Array], node: Node) -> Array:
    """b1 `[B]` for the two leaves of TEXT: UTF-8 out of the charset, as long as is said, and zeros behind it."""
    data, lengths = leaves
    charset = frozenset(node.charset)

    def is_wrong(row: bytes, length: int) -> bool:
        if not 0 <= length <= len(row) or any(row[length:]):
            return True
        try:
            text = row[:length].decode()
        except UnicodeDecodeError:
            return True
        return not (node.min_length <= len(text) <= node.max_length and charset.issuperset(text))

    return np.fromiter(map(is_wrong, map(bytes, data), lengths.tolist()), np.bool_, len(data))


def _range_of(node: Node) -> str:
    if node.kind == pb.DISCRETE:
        return f"{node.start}..{node.start + node.n - 1}"
    if node.kind == pb.MULTI_DISCRETE and node.nvec is not None:
        return f"nvec {node.nvec.tolist()}"
    if node.kind == pb.TEXT:
        return f"texts of {node.min_length}..{node.max_length} characters of its charset"
    return "0..1" if node.kind == pb.MULTI_BINARY else "the numbers"


def to_json(value: Mapping[str, Any], what: str) -> bytes:
    """A JSON object; NumPy scalars become numbers."""
    try:
        data = json.dumps(dict(value), sort_keys=True, default=_plain, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be plain JSON values: {error}") from None
    if len(data) > MAX_JSON_BYTES:
        raise ConfigError(f"{what}: {len(data)} bytes of JSON; {MAX_JSON_BYTES} are possible")
    return data


def from_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object from the peer; empty bytes are an empty one."""
    if not data:
        return {}
    if len(data) > MAX_JSON_BYTES:
        raise RemoteProtocolError(f"{what}: {len(data)} bytes of JSON; {MAX_JSON_BYTES} are possible", "BAD_REQUEST")
    try:
        value = json.loads(data.decode(), parse_constant=_no_json)
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"{what}: not JSON", "BAD_REQUEST") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what}: a JSON object is wanted", "BAD_REQUEST")
    return value


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON, though Python reads it")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
