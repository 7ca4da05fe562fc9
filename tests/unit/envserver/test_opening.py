"""What Open asks of a lane, and whether a prepared host answers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from envserver.host import Host, LaneWish
from envserver.opening import fits, opened_by, wish_of
from tests.unit.envserver.driving import build

BUILT_FOR = LaneWish("CartPole-v1", num_slots=2, fleet_slots=(0, 1), incarnations=(0, 0))


@pytest.fixture(scope="module")
def slots() -> Iterator[Host]:
    host = build("CartPole-v1", 2, host=pb.SLOTS)
    yield host
    host.close()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, True),
        ({"fleet_slots": (7, 9), "incarnations": (3, 0), "run_seed": 5}, True),
        ({"per_slot_seeds": True, "masked_reset": True}, True),
        ({"host": pb.SLOTS}, True),
        ({"host": pb.NATIVE}, False),
        ({"env": "Acrobot-v1"}, False),
        ({"kwargs": {"max_episode_steps": 9}}, False),
        ({"num_slots": 3}, False),
        ({"autoreset": pb.NEXT_STEP}, False),
        ({"render": True}, False),
        ({"snapshots": True}, False),
    ],
)
def test_what_fits(slots: Host, other: dict[str, Any], expected: bool) -> None:
    """Whose the slots are does not matter; anything that the client could notice does."""
    assert fits(slots, BUILT_FOR, replace(BUILT_FOR, **other)) is expected


@pytest.mark.parametrize("lacking", ["per_slot_seeds", "masked_reset"])
def test_a_host_that_cannot_do_what_is_wanted_does_not_fit(
    slots: Host, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wants are met by what a host can do, not by what it was built for."""
    monkeypatch.setattr(slots, lacking, False)
    assert fits(slots, BUILT_FOR, BUILT_FOR)
    assert not fits(slots, BUILT_FOR, replace(BUILT_FOR, **{lacking: True}))  # type: ignore[arg-type]


def test_a_wish_says_what_open_asked() -> None:
    """Field by field; no autoreset mode named means SAME_STEP."""
    request = pb.Open(
        env="a",
        kwargs_json=b'{"x": 1}',
        fleet_slots=[4, 5],
        incarnations=[0, 2],
        run_seed=3,
        host=pb.NATIVE,
        per_slot_seeds=True,
        masked_reset=True,
        render=True,
    )
    expected = LaneWish("a", {"x": 1}, 2, (4, 5), (0, 2), 3, pb.SAME_STEP, pb.NATIVE, True, True, True)
    assert wish_of(request) == expected
    request.autoreset = pb.DISABLED
    assert wish_of(request) == replace(expected, autoreset=pb.DISABLED)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"fleet_slots": []}, "BAD_REQUEST"),
        ({"fleet_slots": [1], "incarnations": []}, "BAD_REQUEST"),
        ({"fleet_slots": [1], "incarnations": [0], "seeds": [1, 2]}, "BAD_REQUEST"),
    ],
)
def test_an_open_that_makes_no_sense_is_refused(fields: dict[str, Any], code: str) -> None:
    """No slots, or lists of other lengths than the slots."""
    with pytest.raises(ServerRefused) as refused:
        wish_of(pb.Open(env="a", **fields))
    assert refused.value.code == code


def test_features_are_those_of_both_sides(slots: Host) -> None:
    """CartPole has no stack, no soft ends and no array worth its changes, and is rendered where that was wanted."""
    every = [pb.FRAME_STACK, pb.RENDERING, pb.SOFT_ENDS, pb.RESUME_LANES, pb.CHANGES]
    opened = opened_by(slots, BUILT_FOR, every)
    assert list(opened.features) == []
    assert list(opened_by(slots, replace(BUILT_FOR, render=True), every).features) == [pb.RENDERING]
    assert list(opened_by(slots, replace(BUILT_FOR, render=True), []).features) == []
    assert opened.spec_hash == slots.spec.hash()
    assert (opened.per_slot_seeds, opened.masked_reset, opened.host) == (True, True, pb.SLOTS)
    assert (opened.lane_id, opened.token, opened.max_in_flight) == ("", b"", 0)
