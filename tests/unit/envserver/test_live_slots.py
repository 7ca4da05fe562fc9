"""Slots that are looked at and replaced."""

from __future__ import annotations

import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, RowTracker
from asyncrl.wire.requests import ResetRequest
from envserver.snapshots.store import Position
from tests.unit.envserver.driving import build
from tests.unit.envserver.zoo import options


def test_a_restored_row_begins_an_episode_and_the_others_stand_still() -> None:
    """Its flag is FIRST without a transition; the others keep observation and episode; statistics go on."""
    host = build("CartPole-v1", 3, host=pb.SLOTS)
    live = host.live
    assert live is not None
    tracker = RowTracker(3)
    first = host.reset(ResetRequest(None, [1, 2, 3], None))
    tracker.advance(first.flags)
    before = first.obs[0].copy()
    env = live.make()
    env.reset(seed=9)
    rows = live.replace(1, env, Position(None, None, None, 7.0, 7), [np.full(4, 0.5, np.float32)])
    tracker.advance(rows.flags)
    assert rows.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION, NO_TRANSITION]
    assert rows.obs[0][1].tolist() == [0.5] * 4
    assert np.array_equal(rows.obs[0][[0, 2]], before[[0, 2]])
    assert tracker.episode.tolist() == [0, 1, 0]
    assert live.env(1) is env
    assert live.position(1)[0].game_length == 7
    rows = host.step([np.array([0, 0, 0])])
    assert live.position(1)[0].game_return == 8.0
    assert live.position(0)[0].game_length == 1
    assert rows.flags.tolist() == [0, 0, 0]


def test_a_lost_row_is_cut_and_created_anew() -> None:
    """The rows of other slots carry nothing; an episode that is not running has nothing to cut."""
    host = build("CartPole-v1", 2, host=pb.SLOTS)
    live = host.live
    assert live is not None
    unborn = live.lose(1, RuntimeError("half way"), "restoring it")
    assert unborn.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION]
    first = host.reset(ResetRequest(None, [1, 2], None)).obs[0].copy()
    before = live.env(0)
    rows = live.lose(0, RuntimeError("half way"), "restoring it")
    assert rows.flags.tolist() == [CUT | FIRST | NO_TRANSITION, NO_TRANSITION]
    assert [(each.row, each.incarnation) for each in rows.rebuilt] == [(0, 1)]
    assert live.env(0) is not before
    assert np.array_equal(rows.obs[0][1], first[1])
    assert host.step([np.array([0, 0])]).flags.tolist() == [0, 0]


def test_only_running_rows_are_running() -> None:
    """Before the first reset, and after an end without autoreset, a row has an environment but no episode."""
    host = build(options("masked", "masked"), 1, autoreset=pb.DISABLED)
    live = host.live
    assert live is not None
    assert live.running(0) is None
    assert live.env(0) is not None
    host.reset(ResetRequest(None, [1], None))
    assert live.running(0) is live.env(0)
    assert live.position(0)[0].to_play == 0
    for _ in range(4):
        host.step([np.array([1])])
    assert live.running(0) is None


def test_positions_are_copies() -> None:
    """A later step changes nothing of what was looked at."""
    host = build(options("masked", "masked"), 1)
    live = host.live
    assert live is not None
    host.reset(ResetRequest(None, [1], None))
    position, obs = live.position(0)
    assert position.mask is not None
    kept = obs[0].copy(), position.mask.copy()
    host.step([np.array([1])])
    assert np.array_equal(obs[0], kept[0])
    assert np.array_equal(position.mask, kept[1])
