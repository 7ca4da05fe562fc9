"""From searches to the rows of a batch: what is played, how likely that was, and what is learned from it.

Invariants: rows without a search are the policy's, with its probabilities (test_rows_without_a_search_are_the_policys);
players that the learner could not tell apart are refused (test_players_are_0_and_1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from asyncrl.collector.joining import ActRequest
from asyncrl.errors import ConfigError
from asyncrl.policy import Acted
from asyncrl.records import Array
from asyncrl.search import SearchResult
from asyncrl.search.lane_actions import first_action, num_actions
from asyncrl.wire.spec import LaneSpec


def acted_of(
    joined: ActRequest,
    spec: LaneSpec,
    places: Sequence[int],
    results: Sequence[SearchResult],
    version: int,
    drawn: Acted | None,
) -> Acted:
    """What the searches of the rows `places` found; in other rows what was drawn, or else any legal action.

    Of policies that list no actions `drawn` has samples in their place, and the first of them is it.
    """
    rows = len(joined.first)
    if drawn is None:
        action = _some_action(joined, spec)
        log_prob, value = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    else:
        leaves = drawn.action or [leaf[:, 0] for leaf in drawn.kept]
        action = [np.array(leaf, like.dtype) for leaf, like in zip(leaves, spec.action.leaves, strict=True)]
        log_prob, value = np.array(drawn.log_prob), np.array(drawn.value, np.float32)
    enumerated = num_actions(spec) > 0
    for row, result in zip(places, results, strict=True):
        if enumerated:
            action[0][row] = result.action + first_action(spec)
        else:
            for leaf, chosen in zip(action, result.chosen, strict=True):
                leaf[row] = chosen
        log_prob[row] = 0.0 if result.behavior is None else math.log(result.behavior[result.action])
        value[row] = result.root_value
    return Acted(action, log_prob, value, version)


def _some_action(joined: ActRequest, spec: LaneSpec) -> list[Array]:
    """Per leaf [N, *shape]: the first that is allowed."""
    rows = len(joined.first)
    if num_actions(spec):
        choice = np.zeros(rows, np.int64) if joined.mask is None else joined.mask.argmax(1)
        return [(choice + first_action(spec)).astype(spec.action.leaves[0].dtype)]
    return [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.action.leaves]


def targets_of(
    joined: ActRequest, places: Sequence[int], results: Sequence[SearchResult], width: int
) -> tuple[Array, Array, Array]:
    """`Acted.kept` of a `SearchActor`. ConfigError for players that are not 0 and 1."""
    rows = len(joined.first)
    target, weight = np.zeros((rows, width), np.float32), np.zeros(rows, np.float32)
    for row, result in zip(places, results, strict=True):
        target[row] = result.action_weights
        weight[row] = 1.0
    side = np.ones(rows, np.float32)
    if joined.to_play is not None:
        unknown = sorted(set(joined.to_play.tolist()) - {0, 1})
        if unknown:
            raise ConfigError(
                f'infos["to_play"] says {unknown[0]}: what is learned from searches is played by players 0 and 1,'
                " and a game that counts them otherwise would take the opponent's rewards for one's own"
            )
        side[joined.to_play == 1] = -1.0
    return target, weight, side
