"""Bodies of RESET and STEP, the checks of an action, and JSON from both sides."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import (
    MAX_JSON_BYTES,
    ResetRequest,
    check_actions,
    decode_reset,
    decode_step,
    encode_reset,
    encode_step,
    from_json,
    to_json,
)
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.tensors import Array
from tests.unit.wire.strategies import INTEGERS, member_leaves, random_leaves, seeds, space_specs

I8, F4 = np.dtype("<i8"), np.dtype("<f4")


def space(*nodes: Node) -> SpaceSpec:
    return SpaceSpec(nodes)


# ---------------------------------------------------------------------------------------------------------------- reset


optional_seeds = st.one_of(st.none(), st.integers(0, 2**64 - 1))


@given(st.data(), st.integers(1, 5))
def test_resets_round_trip(data: st.DataObject, num_slots: int) -> None:
    """Masks, seeds of some rows and options come back; what says nothing comes back as None."""
    mask = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=num_slots, max_size=num_slots)))
    given_seeds = data.draw(st.one_of(st.none(), st.lists(optional_seeds, min_size=num_slots, max_size=num_slots)))
    options = data.draw(st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
    request = ResetRequest(None if mask is None else np.array(mask), given_seeds, options)
    back = decode_reset(encode_reset(request), num_slots)
    assert (None if back.mask is None else back.mask.tolist()) == mask
    has_seeds = given_seeds is not None and any(seed is not None for seed in given_seeds)
    assert back.seeds == (given_seeds if has_seeds else None)
    assert back.options == (options or None)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (pb.Reset(mask=b"\1"), "reset mask: 1 bytes"),
        (pb.Reset(mask=b"\1" * 3), "reset mask: 3 bytes"),
        (pb.Reset(mask=b"\1\2"), "a bool is 0 or 1"),
        (pb.Reset(seeds=[1]), "1 seeds for 2 slots"),
        (pb.Reset(seeds=[1, 2, 3]), "3 seeds for 2 slots"),
        (pb.Reset(seeds=[1, 2], seeded=b"\1"), "seeds for 2 slots"),
        (pb.Reset(options_json=b"[]"), "a JSON object is wanted"),
        (pb.Reset(options_json=b"{"), "not JSON"),
    ],
)
def test_resets_that_make_no_sense_are_bad_requests(message: pb.Reset, says: str) -> None:
    """Wrong lengths and options that are none: the stream goes on, the request is refused."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_reset(message.SerializeToString(), 2)
    assert says in str(caught.value)
    assert caught.value.code == "BAD_REQUEST"


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_does_not_fit_is_this_sides_fault(seed: int) -> None:
    """Refused before anything is sent."""
    with pytest.raises(LocalProtocolError, match=str(seed)):
        encode_reset(ResetRequest(None, [None, seed], None))


# ----------------------------------------------------------------------------------------------------------------- step


@given(seeds, space_specs(), st.integers(0, 4))
def test_actions_round_trip(seed: int, action_space: SpaceSpec, num_slots: int) -> None:
    """Any bits of any space come back; the CRC is zlib's over the leaves in a row."""
    action = random_leaves(np.random.default_rng(seed), action_space, num_slots)
    body, crc = encode_step(action, action_space.leaves, num_slots)
    back, back_crc = decode_step(body, action_space.leaves, num_slots)
    assert [array.tobytes() for array in back] == [array.tobytes() for array in action]
    assert crc == back_crc == zlib.crc32(b"".join(array.tobytes() for array in action))


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ([], "0 action arrays where the space has 1"),
        ([np.zeros(2, np.int64), np.zeros(2, np.int64)], "2 action arrays"),
        ([np.zeros(2, np.int32)], "action is int32[2]; the lane wants int64[2]"),
        ([np.zeros(3, np.int64)], "int64[3]"),
        ([np.zeros((2, 1), np.int64)], "int64[2, 1]"),
        ([np.zeros(2, np.float64)], "float64"),
    ],
)
def test_an_action_that_does_not_fit_is_this_sides_fault(action: list[Array], says: str) -> None:
    """Number, dtype and shape have to be exact, and the error shows both."""
    with pytest.raises(LocalProtocolError) as caught:
        encode_step(action, space(Node(pb.DISCRETE, dtype=I8, n=2)).leaves, 2)
    assert says in str(caught.value)


def test_a_named_leaf_is_named() -> None:
    """The leaf of a Dict is called by its path."""
    leaves = space(Node(pb.DICT), Node(pb.BOX, 0, "gas", F4)).leaves
    with pytest.raises(LocalProtocolError, match="action 'gas' is float64"):
        encode_step([np.zeros(2)], leaves, 2)


@pytest.mark.parametrize(
    "message",
    [
        pb.Step(),
        pb.Step(action=[bytes(8)], action_crc=zlib.crc32(bytes(8))),
        pb.Step(action=[bytes(16), b""], action_crc=zlib.crc32(bytes(16))),
        pb.Step(action=[bytes(16)]),
        pb.Step(action=[bytes(16)], action_crc=zlib.crc32(bytes(16)) ^ 1),
    ],
)
def test_an_action_that_arrives_damaged_is_a_bad_action(message: pb.Step) -> None:
    """Wrong number, wrong length, wrong CRC: nothing is executed."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_step(message.SerializeToString(), space(Node(pb.DISCRETE, dtype=I8, n=2)).leaves, 2)
    assert caught.value.code == "BAD_ACTION"


# -------------------------------------------------------------------------------------------------------- check_actions


@given(seeds, space_specs(), st.integers(0, 4))
def test_every_action_of_a_space_is_accepted(seed: int, action_space: SpaceSpec, num_slots: int) -> None:
    """Members of random spaces pass, also where a lane has no slots."""
    action = member_leaves(np.random.default_rng(seed), action_space, num_slots)
    if _every_member_has_its_dtype(action_space):
        assert check_actions(action, action_space) is None


def _every_member_has_its_dtype(action_space: SpaceSpec) -> bool:
    """Random starts and sizes can lie outside a narrow dtype; such a space has members that cannot be written down."""
    for node in action_space.nodes:
        if node.kind == pb.DISCRETE or (node.kind == pb.MULTI_DISCRETE and 0 not in node.shape):
            bounds = np.iinfo(node.dtype)
            low, high = _limits(node)
            if low < bounds.min or high > bounds.max:
                return False
    return True


def _limits(node: Node) -> tuple[int, int]:
    if node.kind == pb.DISCRETE:
        return node.start, node.start + node.n
    assert node.nvec is not None
    start = np.zeros(node.shape, np.int64) if node.nvec_start is None else node.nvec_start
    return int(start.min()), int((start + node.nvec).max())


def text(*rows: bytes, width: int = 6, lengths: list[int] | None = None) -> list[Array]:
    data = np.zeros((len(rows), width), np.uint8)
    for number, row in enumerate(rows):
        data[number, : len(row)] = np.frombuffer(row, np.uint8)
    return [data, np.array([len(row) for row in rows] if lengths is None else lengths, np.int32)]


@dataclass(frozen=True)
class Case:
    """A space, an action inside it and actions outside, whose second row is to blame."""

    node: Node
    good: list[Array]
    bad: list[list[Array]]
    says: str


def ints(*values: Any, dtype: Any = np.int64) -> list[Array]:
    return [np.array(values, dtype)]


MULTI = Node(pb.MULTI_DISCRETE, dtype=I8, shape=(2,), nvec=np.array([2, 3]), nvec_start=np.array([0, -1]))
CASES = {
    "DISCRETE": Case(
        Node(pb.DISCRETE, dtype=I8, n=3, start=-1),
        ints(-1, 1),
        [ints(0, -2), ints(0, 2), ints(0, 2**63 - 1), ints(0, -(2**63))],
        "outside -1..1",
    ),
    "DISCRETE of u1": Case(
        Node(pb.DISCRETE, dtype=np.dtype("u1"), n=2), ints(0, 1, dtype="u1"), [ints(0, 255, dtype="u1")], "outside 0..1"
    ),
    "DISCRETE of i1 with a wide range": Case(
        Node(pb.DISCRETE, dtype=np.dtype("i1"), n=1000, start=5),
        ints(5, 127, dtype="i1"),
        [ints(5, 4, dtype="i1"), ints(5, -128, dtype="i1")],
        "outside 5..1004",
    ),
    "DISCRETE of u8": Case(
        Node(pb.DISCRETE, dtype=np.dtype("u8"), n=2), ints(0, 1, dtype="u8"), [ints(0, 2**64 - 1, dtype="u8")], "0..1"
    ),
    "DISCRETE with a negative start, unsigned": Case(
        Node(pb.DISCRETE, dtype=np.dtype("u1"), n=2, start=-1),
        ints(0, 0, dtype="u1"),
        [ints(0, 1, dtype="u1")],
        "-1..0",
    ),
    "MULTI_DISCRETE": Case(MULTI, ints([0, -1], [1, 1]), [ints([0, 0], [2, 0]), ints([0, 0], [0, -2])], "nvec [2, 3]"),
    "MULTI_DISCRETE from 0": Case(
        Node(pb.MULTI_DISCRETE, dtype=I8, shape=(1,), nvec=np.array([2])), ints([0], [1]), [ints([0], [-1])], "nvec [2]"
    ),
    "MULTI_BINARY": Case(
        Node(pb.MULTI_BINARY, dtype=np.dtype("i1"), shape=(2,)),
        ints([0, 1], [1, 1], dtype="i1"),
        [ints([0, 0], [0, 2], dtype="i1"), ints([0, 0], [-1, 0], dtype="i1")],
        "outside 0..1",
    ),
    "BOX of floats": Case(
        Node(pb.BOX, dtype=F4, shape=(2,), low=np.zeros(2, F4), high=np.ones(2, F4)),
        ints([0, 99], [-np.inf, 1], dtype=F4),
        [ints([0, 0], [0, np.nan], dtype=F4)],
        "outside the numbers",
    ),
    "TEXT": Case(
        Node(pb.TEXT, min_length=1, max_length=2, charset="aé"),
        text(b"a", "éa".encode()),
        [
            text(b"a", b""),
            text(b"a", b"aaa"),
            text(b"a", b"b"),
            text(b"a", b"\xc3"),
            text(b"a", b"a", lengths=[1, 2]),
            text(b"a", b"aa", lengths=[1, 1]),
            text(b"a", b"a", lengths=[1, -1]),
            text(b"a", b"a", lengths=[1, 7]),
        ],
        "outside texts of 1..2 characters",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_actions_out_of_the_space_are_refused(name: str) -> None:
    """Every kind of space: its edges pass, each step over them names the row and the range."""
    case = CASES[name]
    assert check_actions(case.good, space(case.node)) is None
    for action in case.bad:
        found = check_actions(action, space(case.node))
        assert found is not None
        assert "row 1 is" in found
        assert case.says in found


def test_the_leaf_to_blame_is_named() -> None:
    """In a nested space, behind a text with its two arrays."""
    nested = space(
        Node(pb.DICT),
        Node(pb.TEXT, 0, "a", max_length=1, charset="x"),
        Node(pb.BOX, 0, "b", np.dtype("<i4"), (1,)),
        Node(pb.DISCRETE, 0, "c", I8, n=2),
    )
    good = [*text(b"x", b"", width=1), np.full((2, 1), -9, np.int32), np.array([0, 1])]
    assert check_actions(good, nested) is None
    assert check_actions([*good[:3], np.array([0, 2])], nested) == "action 'c' of row 1 is 2, outside 0..1"
    bad_text = check_actions([*text(b"x", b"y", width=1), *good[2:]], nested)
    assert bad_text == "action 'a' of row 1 is no text, outside texts of 0..1 characters of its charset"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_edges_of_every_dtype_are_compared_exactly(dtype: np.dtype[Any]) -> None:
    """The largest and the smallest number of a dtype against a range of two: never taken for a member by wrapping."""
    two = space(Node(pb.DISCRETE, dtype=dtype, n=2, start=1))
    for value in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        assert check_actions([np.array([value], dtype)], two) is not None
    assert check_actions([np.array([1, 2], dtype)], two) is None


# ----------------------------------------------------------------------------------------------------------------- JSON


def test_json_round_trips_with_numpy_in_it() -> None:
    """NumPy's numbers and arrays become JSON's, keys are sorted, and nothing is an empty object."""
    value = {"b": np.float32(0.5), "a": np.array([1, 2]), "c": {"d": [True, None, "ü"]}, "e": np.bool_(True)}
    data = to_json(value, "x")
    assert from_json(data, "x") == {"a": [1, 2], "b": 0.5, "c": {"d": [True, None, "ü"]}, "e": True}
    assert list(json.loads(data)) == sorted(value)
    assert from_json(b"", "x") == {}
    assert to_json({}, "x") == b"{}"


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE
DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"d": DEEP}


@pytest.mark.parametrize(
    "value",
    [
        {"a": object()},
        {"a": {1, 2}},
        {"a": b"bytes"},
        {"a": float("nan")},
        {"a": np.float64("inf")},
        {("a", "b"): 1},
        {"a": np.array(["2020-01-01"], "datetime64[D]")},
        {"a": "x" * MAX_JSON_BYTES},
        CIRCLE,
        DEEP,
    ],
    ids=["object", "set", "bytes", "nan", "inf", "key", "time", "size", "circle", "depth"],
)
def test_what_is_no_json_is_the_callers_fault(value: dict[Any, Any]) -> None:
    """Each raises ConfigError that names the setting."""
    with pytest.raises(ConfigError, match="env kwargs"):
        to_json(value, "env kwargs")


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1,}',
        b"{'a': 1}",
        b"\xff",
        b'{"a": "\xff"}',
        b'{"a": 1} x',
        '{"a": 1}'.encode("utf-16"),
        b'{"a":' * 10_000,
        b"[" * (MAX_JSON_BYTES - 1),
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "' + b"x" * MAX_JSON_BYTES + b'"}',
    ],
    ids=range(17),
)
def test_json_of_the_peer_is_strict(data: bytes) -> None:
    """No object, no JSON, Python's extensions of it, other encodings, depth, huge numbers, size: BAD_REQUEST."""
    with pytest.raises(RemoteProtocolError) as caught:
        from_json(data, "env kwargs")
    assert caught.value.code == "BAD_REQUEST"
    assert "env kwargs" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_largest_json_is_read() -> None:
    """Exactly the limit."""
    padding = MAX_JSON_BYTES - len(to_json({"a": ""}, "x"))
    data = to_json({"a": "x" * padding}, "x")
    assert len(data) == MAX_JSON_BYTES
    assert len(from_json(data, "x")["a"]) == padding
