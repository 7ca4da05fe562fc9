"""Infos of a vector environment, in the form and the dtypes that Gymnasium's own vector environments give them.

A key holds an array over all slots and `_key` a mask of the slots that have it; nested dicts repeat that inside.
Two keys are ours: `episode` (statistics of games that ended, as `gymnasium.wrappers.vector.RecordEpisodeStatistics`
writes them) and `asyncrl/lost` (this row is no transition: its environment was lost).

A key has one shape, that of the first row that brings it, and is either a number or a dict: values that do not fit are
left out, and the mask says so, because the array has no place for them (test_values_of_other_shapes_are_left_out).

Invariant: columns of any split into lanes give what `VectorEnv._add_info` makes of the same single infos
(test_columns_merge_as_gymnasium_merges_infos).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.step_rows import EpisodeStats
from asyncrl.wire.tensors import Array

LOST: Final = "asyncrl/lost"
MASK: Final = "action_mask"
EPISODE: Final = "episode"

Infos = dict[str, Any]


def add_columns(infos: Infos, columns: Sequence[InfoColumn], slots: Array, num_envs: int) -> None:
    """Merge one lane's columns; `slots` `[B]` are the places of its rows among `num_envs`."""
    for column in columns:
        *parents, key = column.key.split("/")
        rows = slots[column.rows]
        into: Any = infos
        for parent in parents:
            nested = into.setdefault(parent, {})
            if not isinstance(nested, dict):
                break  # a number in another row
            _mark(into, parent, rows, num_envs)
            into = nested
        else:
            put(into, key, rows, column.data, num_envs)


def put(infos: Infos, key: str, rows: Array, data: Array, num_envs: int) -> None:
    """`data` `[N, ...]` for `rows` `[N]` of one key; zeros where no row has it. Left out where the key is of a shape of
    its own already."""
    whole = infos.get(key)
    if whole is None:
        whole = infos[key] = np.zeros((num_envs, *data.shape[1:]), data.dtype)
    elif isinstance(whole, dict) or whole.shape[1:] != data.shape[1:]:
        return
    elif whole.dtype != data.dtype:  # lanes may differ, where their environments do
        whole = infos[key] = whole.astype(np.result_type(whole, data))
    whole[rows] = data
    _mark(infos, key, rows, num_envs)


def add_finals(infos: Infos, rows: Array, observations: Sequence[Any], num_envs: int) -> Infos:
    """Last observations of episodes that ended in `rows` `[R]`; gives the dict that their infos belong into."""
    if not len(rows):
        return {}
    whole = infos.get("final_obs")
    if whole is None:
        whole = infos["final_obs"] = np.full(num_envs, None, dtype=object)
    for row, observation in zip(rows, observations, strict=True):
        whole[row] = observation
    _mark(infos, "final_obs", rows, num_envs)
    _mark(infos, "final_info", rows, num_envs)
    final: Infos = infos.setdefault("final_info", {})
    return final


def add_statistics(infos: Infos, stats: EpisodeStats, slots: Array, num_envs: int) -> None:
    """Whole games that ended in one lane's rows."""
    table = infos.get(EPISODE)
    if not isinstance(table, dict) or "r" not in table:
        table = infos[EPISODE] = {
            "r": np.zeros(num_envs),
            "l": np.zeros(num_envs, np.int64),
            "t": np.zeros(num_envs),
        }
    rows = slots[stats.rows]
    table["r"][rows], table["l"][rows], table["t"][rows] = stats.returns, stats.lengths, stats.times
    _mark(infos, EPISODE, rows, num_envs)


def add_mask(infos: Infos, rows: Array, mask: Array, num_envs: int) -> None:
    """Allowed actions `[N, mask_size]` of `rows` `[N]`, as the int8 that `Discrete.sample(mask=...)` takes."""
    put(infos, MASK, rows, mask.astype(np.int8), num_envs)


def add_lost(infos: Infos, rows: Array, num_envs: int) -> None:
    """Rows `[N]` that are no transitions."""
    if len(rows):
        put(infos, LOST, rows, np.ones(len(rows), np.bool_), num_envs)


def _mark(infos: Infos, key: str, rows: Array, num_envs: int) -> None:
    mask = infos.get(f"_{key}")
    if mask is None:
        mask = infos[f"_{key}"] = np.zeros(num_envs, np.bool_)
    mask[rows] = True
