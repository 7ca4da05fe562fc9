"""Rows of several lanes in one forward: joined in the order given, split the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.collector.joining import ActRequest, Joiner
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array


class Mirror:
    """Answers with what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[list[Array], Array | None, Array, list[Array], Array | None]] = []

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        self.shown.append((list(obs), mask, first, list(carry), keys))
        value = obs[0][:, 0].copy()
        wide = obs[0] * 2
        return Acted([wide], value + 1, value, 3, [leaf + 1 for leaf in carry], [wide.clip(0, 5)], [value - 1, wide])


def request(lane: int, size: int, *, keys: bool = True, mask: bool = True) -> ActRequest:
    """Rows whose numbers tell the lane."""
    rows = np.arange(size) + 10.0 * lane
    return ActRequest(
        lane,
        [np.stack([rows, rows], axis=1), rows.astype(np.uint8)],
        rows % 2 == 0,
        np.stack([rows % 2 == 0, rows >= 0], axis=1) if mask else None,
        [np.stack([rows] * 3, axis=1)],
        rows.astype(np.uint64) if keys else None,
    )


def test_lanes_get_their_own_rows_back() -> None:
    """Lanes of 2, 0 and 3 rows, twice in the same memory: each gets what its rows make, in every field."""
    joiner, policy = Joiner(), Mirror()
    for shift in (0, 3):
        requests = [request(lane + shift, size) for lane, size in enumerate((2, 0, 3))]
        parts = joiner.act(policy, requests)
        for one, part in zip(requests, parts, strict=True):
            np.testing.assert_array_equal(part.action[0], one.obs[0] * 2)
            np.testing.assert_array_equal(part.env_action[0], (one.obs[0] * 2).clip(0, 5))
            np.testing.assert_array_equal(part.kept[0], one.obs[0][:, 0] - 1)
            np.testing.assert_array_equal(part.kept[1], one.obs[0] * 2)
            np.testing.assert_array_equal(part.log_prob, one.obs[0][:, 0] + 1)
            np.testing.assert_array_equal(part.value, one.obs[0][:, 0])
            np.testing.assert_array_equal(part.carry[0], one.carry[0] + 1)
            assert part.version == 3
            assert part.sent_action is part.env_action
        _, mask, first, _, keys = policy.shown[-1]
        np.testing.assert_array_equal(first, np.concatenate([one.first for one in requests]))
        assert mask is not None
        assert keys is not None
        np.testing.assert_array_equal(mask, np.concatenate([one.mask for one in requests if one.mask is not None]))
        np.testing.assert_array_equal(keys, np.concatenate([one.keys for one in requests if one.keys is not None]))


def test_keys_of_some_are_keys_of_none() -> None:
    """A lane without keys has the forward use any noise; a lane without a mask allows everything."""
    joiner, policy = Joiner(), Mirror()
    joiner.act(policy, [request(0, 2), request(1, 2, keys=False, mask=False)])
    _, mask, _, _, keys = policy.shown[-1]
    assert keys is None
    assert mask is not None
    assert mask[2:].all()


def test_one_lane_alone_is_not_copied() -> None:
    """The policy sees the lane's own arrays, and the lane its whole answer."""
    joiner, policy = Joiner(), Mirror()
    one = request(4, 3)
    (part,) = joiner.act(policy, [one])
    obs, mask, first, carry, keys = policy.shown[-1]
    shown, given = [*obs, mask, first, *carry, keys], [*one.obs, one.mask, one.first, *one.carry, one.keys]
    assert all(a is b for a, b in zip(shown, given, strict=True))
    assert len(part.value) == 3


def test_what_is_sent_is_the_action_unless_said_otherwise() -> None:
    """() in env_action: the environments get what is stored."""
    acted = Acted([np.arange(2)], np.zeros(2), np.zeros(2), 0)
    assert acted.sent_action is acted.action


def test_a_lane_that_acts_first_joins_with_zeros() -> None:
    """Beside one that has a carry; where nobody has one the policy sees none."""
    joiner, policy = Joiner(), Mirror()
    new = request(1, 3)._replace(carry=())
    joiner.act(policy, [request(0, 2), new])
    (carry,) = policy.shown[-1][3]
    np.testing.assert_array_equal(carry, np.concatenate([request(0, 2).carry[0], np.zeros((3, 3))]))
    joiner.act(policy, [new, new])
    assert policy.shown[-1][3] == []
