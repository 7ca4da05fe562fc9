"""Actions that are none: each is ERROR BAD_ACTION, and nothing was executed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from asyncrl.conformance.bench import Action, Bench, difference, needs
from asyncrl.conformance.registry import check, expect
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node
from asyncrl.wire.tensors import Array


def _body(parts: Sequence[bytes], crc: int | None = None) -> bytes:
    joined = zlib.crc32(b"".join(parts))
    return pb.Step(action=parts, action_crc=joined if crc is None else crc).SerializeToString()


def _parts(action: Action) -> list[bytes]:
    return [leaf.tobytes() for leaf in action]


async def _refused_and_unchanged(bench: Bench, bad: dict[str, bytes]) -> None:
    """Each body is refused in mid-episode; the next step is that of a lane which never saw one of them."""
    async with bench.lane() as probe, bench.lane() as reference:
        actions = bench.actions(probe.lane_spec, 4)
        await bench.play(probe, actions[:3])
        await bench.play(reference, actions[:3])
        for what, body in bad.items():
            error = await probe.refusal(await probe.send(pb.STEP, body), "BAD_ACTION")
            bench.note(f"{what}: {error.text}")
        found = difference(await probe.step(actions[3]), await reference.step(actions[3]))
        expect(not found, f"a refused action was executed: {found}")


@check("Step, BAD_ACTION")
async def actions_of_a_wrong_size_are_refused(bench: Bench) -> None:
    """An action with too few or too many bytes or arrays is ERROR BAD_ACTION and executes nothing."""
    async with bench.lane() as probe:
        parts = _parts(bench.actions(probe.lane_spec, 1)[0])
    shorter = [parts[0][:-1], *parts[1:]]
    longer = [parts[0] + b"\0", *parts[1:]]
    another = _body([*parts, b"\0"])
    await _refused_and_unchanged(
        bench,
        {"too short": _body(shorter), "too long": _body(longer), "none": _body([]), "one too many": another},
    )


@check("Step.action_crc")
async def a_wrong_action_crc_is_refused(bench: Bench) -> None:
    """An action whose action_crc does not fit is ERROR BAD_ACTION and executes nothing."""
    async with bench.lane() as probe:
        parts = _parts(bench.actions(probe.lane_spec, 1)[0])
    await _refused_and_unchanged(bench, {"wrong crc": _body(parts, zlib.crc32(b"".join(parts)) ^ 1)})


@check("Step, BAD_ACTION")
async def actions_out_of_range_are_refused(bench: Bench) -> None:
    """A discrete action outside of its space is ERROR BAD_ACTION and executes nothing, whichever row it is in."""
    await _with_values(bench, _outside, "it has no discrete action, so no value is out of range")


@check("Step, BAD_ACTION")
async def actions_that_are_no_numbers_are_refused(bench: Bench) -> None:
    """NaN in a floating action is ERROR BAD_ACTION and executes nothing."""
    await _with_values(bench, _nan, "it has no floating action")


async def _with_values(bench: Bench, of: object, why_not: str) -> None:
    assert callable(of)
    async with bench.lane() as probe:
        spec = probe.lane_spec
        action = bench.actions(spec, 1)[0]
    bad: dict[str, bytes] = {}
    number = 0
    for index, node in enumerate(spec.action.nodes):
        if not node.is_leaf:
            continue
        for value in of(node):
            leaves = [leaf.copy() for leaf in action]
            last = leaves[number][-1:]
            last[...] = value
            bad[f"{spec.action.path(index) or 'action'} of the last row = {value}"] = _body(_parts(leaves))
        number += 2 if node.kind == pb.TEXT else 1
    needs(bool(bad), why_not)
    await _refused_and_unchanged(bench, bad)


def _outside(node: Node) -> list[Array | int]:
    """Values below and above a countable space, as far as its dtype can hold them."""
    if node.kind == pb.DISCRETE:
        candidates = [node.start - 1, node.start + node.n]
    elif node.kind == pb.MULTI_DISCRETE and node.nvec is not None:
        start = np.zeros_like(node.nvec) if node.nvec_start is None else node.nvec_start
        candidates = [int(start.min()) - 1, int((start + node.nvec).max())]
    elif node.kind == pb.MULTI_BINARY:
        candidates = [2]
    else:
        return []
    bounds = np.iinfo(node.dtype)
    return [value for value in candidates if bounds.min <= value <= bounds.max]


def _nan(node: Node) -> list[float]:
    return [float("nan")] if node.kind == pb.BOX and node.dtype.kind == "f" else []
