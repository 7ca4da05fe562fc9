"""Bodies of RESET and STEP, and the checks an action has to pass before an environment sees it.

Invariant: `check_actions` accepts every action of the space and refuses NaN and anything outside
a countable space (test_actions_out_of_the_space_are_refused). Boxes are not clipped: what lies
outside their bounds is the environment's to treat, as in Gymnasium.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.spaces import Leaf, Node, SpaceSpec, read_leaves
from asyncrl.wire.tensors import Array


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
        message.seeds.extend(seed or 0 for seed in request.seeds)
        if None in request.seeds:
            message.seeded = bytes(seed is not None for seed in request.seeds)
    if request.options:
        message.options_json = to_json(request.options, "reset options")
    return message.SerializeToString()


def decode_reset(body: bytes, num_slots: int) -> ResetRequest:
    message = parse_body(pb.Reset, body)
    boolean = np.dtype(np.bool_)
    mask = tensors.from_bytes(message.mask, boolean, (num_slots,), "reset mask") if message.mask else None
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
        wrong = _wrong_rows(action[number], node)
        if wrong is not None and wrong.any():
            row = int(np.argmax(wrong))
            name = f" {space.path(index)!r}" if space.path(index) else ""
            return f"action{name} of row {row} is {action[number][row]}, outside {_range_of(node)}"
        number += 2 if node.kind == pb.TEXT else 1
    return None


def _wrong_rows(array: Array, node: Node) -> Array | None:
    """b1 `[B]`, or None for kinds whose every value is legal."""
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
    return np.asarray(np.asarray(wrong).reshape(len(array), -1).any(axis=1))


def _range_of(node: Node) -> str:
    if node.kind == pb.DISCRETE:
        return f"{node.start}..{node.start + node.n - 1}"
    if node.kind == pb.MULTI_DISCRETE and node.nvec is not None:
        return f"nvec {node.nvec.tolist()}"
    return "0..1" if node.kind == pb.MULTI_BINARY else "the numbers"


def to_json(value: Mapping[str, Any], what: str) -> bytes:
    """A JSON object; NumPy scalars become numbers."""
    try:
        return json.dumps(dict(value), sort_keys=True, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} must be plain JSON values: {error}") from None


def from_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object from the peer; empty bytes are an empty one."""
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"{what}: not JSON", "BAD_REQUEST") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what}: a JSON object is wanted", "BAD_REQUEST")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
