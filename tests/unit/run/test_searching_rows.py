"""From searches to rows."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.collector.joining import ActRequest
from asyncrl.errors import ConfigError
from asyncrl.policy import Acted
from asyncrl.run.searching_rows import acted_of, targets_of
from asyncrl.search import SearchResult, Tree
from asyncrl.wire.spec import LaneSpec
from tests.unit.learner.spaces_served import VECTOR, served

COUNTED = served(VECTOR, spaces.Discrete(3, start=5))


def shown(rows: int, **more: Any) -> ActRequest:
    return ActRequest(0, [np.zeros((rows, 4), np.float32)], np.zeros(rows, np.bool_), **more)


def found(action: int, **more: Any) -> SearchResult:
    """A search that ended with this action of three."""
    fields: dict[str, Any] = {
        "action": action,
        "visits": np.ones(3, np.int64),
        "action_weights": np.array([0.5, 0.25, 0.25]),
        "q": np.zeros(3),
        "root_value": 3.5,
        "behavior": np.array([0.5, 0.25, 0.25]),
        "proposed": [],
        "tree": cast(Tree, None),
        "failures": Counter(),
    }
    return SearchResult(**(fields | more))


def test_rows_without_a_search_are_the_policys() -> None:
    """Action, probability and value of what the policy drew; those of rows with a search are the search's."""
    drawn = Acted([np.array([6, 7, 7])], np.array([-1, -2, -3], np.float32), np.array([10, 20, 30], np.float32), 4)
    acted = acted_of(shown(3), COUNTED, [1], [found(0)], 4, drawn)
    assert acted.action[0].tolist() == [6, 5, 7]
    np.testing.assert_allclose(acted.log_prob, [-1, np.log(0.5), -3], rtol=1e-6)
    assert acted.value.tolist() == [10, 3.5, 30]
    assert acted.version == 4
    assert drawn.action[0].tolist() == [6, 7, 7]


def test_a_sample_stands_in_where_actions_are_not_listed() -> None:
    """The first that the policy proposed, in the dtype of the wire; or the proposed one that the search chose."""
    spec: LaneSpec = served(VECTOR, spaces.Box(-1, 1, (2,), np.float32))
    samples = np.arange(12, dtype=np.float64).reshape(3, 2, 2) / 100
    drawn = Acted([], np.zeros(3, np.float32), np.zeros(3, np.float32), 0, kept=[samples])
    result = found(1, proposed=[np.array([[0.5, 0.5], [0.75, -0.75]])], behavior=None)
    acted = acted_of(shown(3), spec, [1], [result], 0, drawn)
    np.testing.assert_array_equal(acted.action[0], np.array([[0, 0.01], [0.75, -0.75], [0.08, 0.09]], np.float32))
    assert acted.action[0].dtype == np.float32


def test_without_anybody_who_draws_an_action_is_legal() -> None:
    """The first that the mask allows, in the environment's numbering."""
    mask = np.array([[False, True, True], [True, True, True]])
    assert acted_of(shown(2, mask=mask), COUNTED, [], [], 0, None).action[0].tolist() == [6, 5]
    assert acted_of(shown(2), COUNTED, [], [], 0, None).action[0].tolist() == [5, 5]


def test_targets_are_of_rows_with_a_search() -> None:
    """The others weigh nothing; the second player's side is the other one."""
    target, weight, side = targets_of(shown(3, to_play=np.array([0, 1, 1], np.int32)), [1], [found(0)], 3)
    assert target.tolist() == [[0, 0, 0], [0.5, 0.25, 0.25], [0, 0, 0]]
    assert weight.tolist() == [0, 1, 0]
    assert side.tolist() == [1, -1, -1]
    assert targets_of(shown(2), [], [], 3)[2].tolist() == [1, 1]


@pytest.mark.parametrize("players", [[1, 2], [1, -1], [0, 2]])
def test_players_are_0_and_1(players: list[int]) -> None:
    """Numbers by which the two sides could not be told apart, or are not two, are refused by name."""
    with pytest.raises(ConfigError, match=r"to_play.* (2|-1).*players 0 and 1"):
        targets_of(shown(2, to_play=np.array(players, np.int32)), [], [], 3)
