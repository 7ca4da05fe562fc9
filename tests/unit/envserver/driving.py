"""Building hosts in tests, and driving them side by side with Gymnasium's own vector environments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeDecoder, ChangeEncoder
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED, RowTracker
from asyncrl.wire.frame_stack import Encoder, StackDecoder
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.step_rows import StepRows, decode, encode
from asyncrl.wire.tensors import Array
from envserver import gym_spec
from envserver.building import build_host
from envserver.host import Host, LaneWish
from envserver.registry import parse_env_option

Autoreset: TypeAlias = pb.Autoreset.ValueType
GYM_MODES: dict[Autoreset, AutoresetMode] = {
    pb.SAME_STEP: AutoresetMode.SAME_STEP,
    pb.NEXT_STEP: AutoresetMode.NEXT_STEP,
    pb.DISABLED: AutoresetMode.DISABLED,
}
RESET_ALL = ResetRequest(None, None, None)


def build(option: str, num_slots: int, **wants: Any) -> Host:
    """A host by an `--env` option."""
    alias = parse_env_option(option)
    wish = replace(LaneWish(alias.alias, num_slots=num_slots), **wants)
    return build_host(alias, wish, lambda *_: None)


@contextmanager
def registered(env_id: str, entry_point: Any, vector_entry_point: Any) -> Iterator[str]:
    """An id that Gymnasium knows for as long as this lasts."""
    gymnasium.register(env_id, entry_point=entry_point, vector_entry_point=vector_entry_point)
    try:
        yield env_id
    finally:
        del gymnasium.registry[env_id]


def seeds(first: int, count: int) -> ResetRequest:
    return ResetRequest(None, [first + row for row in range(count)], None)


class Driver:
    """A host whose every reply goes over the wire's codecs and through the row table; `stacked` with FRAME_STACK."""

    def __init__(self, host: Host, num_slots: int, stacked: bool = False) -> None:
        self.host, self.num_slots = host, num_slots
        self.tracker = RowTracker(num_slots)
        self.body_bytes = 0  # of the last reply
        self._ends: tuple[Encoder, StackDecoder] | None = None
        self._changes = ChangeEncoder(), ChangeDecoder()
        if stacked:
            leaf = host.spec.observation.leaves[0]
            decoder = StackDecoder(num_slots, leaf.shape[0], leaf.shape[1:], leaf.dtype)
            self._ends = host.stack_encoder(), decoder

    def reset(self, request: ResetRequest = RESET_ALL) -> StepRows:
        return self._accept(self.host.reset(request))

    def step(self, action: list[Array] | None = None) -> StepRows:
        if action is None:
            nodes = [node for node in self.host.spec.action.nodes if node.is_leaf]
            action = [np.full((self.num_slots, *node.shape), node.start, node.dtype) for node in nodes]
        return self._accept(self.host.step(action))

    def _accept(self, rows: StepRows) -> StepRows:
        encoder, decoder = self._ends or (None, None)
        body = encode(rows, self.host.spec, encoder, self._changes[0])
        self.body_bytes = len(body)
        rows = decode(body, self.host.spec, self.num_slots, decoder, self._changes[1])
        self.tracker.advance(rows.flags)
        return rows


class SideBySide:
    """Steps a host and a VectorEnv with the same actions, and asserts that they show the same."""

    def __init__(self, host: Host, env: VectorEnv[Any, Any, Any], num_slots: int) -> None:
        self.driver, self.env, self.num_slots = Driver(host, num_slots), env, num_slots
        self._space = env.single_observation_space
        self._ended = np.zeros(num_slots, np.bool_)
        env.action_space.seed(3)
        self.episodes = 0

    def reset(self, seed: int) -> None:
        rows = self.driver.reset(seeds(seed, self.num_slots))
        obs, infos = self.env.reset(seed=seed)
        self._ended[:] = False
        self._check(rows, obs, infos)

    def step(self) -> StepRows:
        mode = self.driver.host.autoreset
        if mode == pb.DISABLED and self._ended.any():
            return self._reset_ended()
        action = self.env.action_space.sample()
        leaves = gym_spec.buffers_for(self.driver.host.spec.action, self.num_slots)
        writer = gym_spec.RowWriter(self.env.single_action_space, leaves)
        for row, value in enumerate(iterate(self.env.action_space, action)):
            writer.write(row, value)
        rows = self.driver.step(leaves)
        obs, rewards, terminated, truncated, infos = self.env.step(action)
        np.testing.assert_array_equal(rows.rewards, rewards)
        was, self._ended = self._ended, terminated | truncated
        self.episodes += int(self._ended.sum())
        expected = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, 0))
        if mode == pb.SAME_STEP:
            expected[self._ended] |= FIRST
            self._check_finals(rows, infos)
        elif mode == pb.NEXT_STEP:
            expected[was] = FIRST | NO_TRANSITION
        np.testing.assert_array_equal(rows.flags, expected)
        self._check(rows, obs, infos)
        return rows

    def _reset_ended(self) -> StepRows:
        mask = self._ended
        rows = self.driver.reset(ResetRequest(mask, None, None))
        obs, infos = self.env.reset(options={"reset_mask": mask.copy()})
        np.testing.assert_array_equal(rows.flags, np.where(mask, FIRST | NO_TRANSITION, NO_TRANSITION))
        self._ended = np.zeros_like(mask)
        self._check(rows, obs, infos)
        return rows

    def _check(self, rows: StepRows, obs: Any, infos: dict[str, Any]) -> None:
        expected = gym_spec.buffers_for(self.driver.host.spec.observation, self.num_slots)
        writer = gym_spec.RowWriter(self._space, expected)
        for row, value in enumerate(iterate(self.env.observation_space, obs)):
            writer.write(row, value)
        for ours, theirs in zip(rows.obs, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
        assert_infos_equal(rows.infos, infos, self.num_slots)
        if "action_mask" in infos and rows.mask is not None:
            present = infos["_action_mask"]
            np.testing.assert_array_equal(rows.mask[present], infos["action_mask"][present].astype(bool))

    def _check_finals(self, rows: StepRows, infos: dict[str, Any]) -> None:
        np.testing.assert_array_equal(rows.final_rows, np.flatnonzero(self._ended))
        finals = infos.pop("final_obs", None)
        final_info = infos.pop("final_info", {})
        expected = gym_spec.buffers_for(self.driver.host.spec.observation, len(rows.final_rows))
        writer = gym_spec.RowWriter(self._space, expected)
        for number, row in enumerate(rows.final_rows):
            assert finals is not None
            writer.write(number, finals[row])
        for ours, theirs in zip(rows.final_obs, expected, strict=len(rows.final_rows) > 0):
            np.testing.assert_array_equal(ours, theirs)
        assert_infos_equal(rows.final_infos, final_info, self.num_slots)


def sync(option: str, num_slots: int, mode: Autoreset) -> SyncVectorEnv:
    """Gymnasium's own loop over the same environments."""
    alias = parse_env_option(option)
    make: Any
    if alias.entry_point is None:
        env_id = alias.env_id or ""
        make = lambda: gymnasium.make(env_id, disable_env_checker=True, **alias.kwargs)  # noqa: E731
    else:
        creator = gymnasium.envs.registration.load_env_creator(alias.entry_point)
        make = lambda: creator(**alias.kwargs)  # noqa: E731
    return SyncVectorEnv([make] * num_slots, autoreset_mode=GYM_MODES[mode])


def numeric(infos: dict[str, Any], prefix: str = "") -> dict[str, tuple[Array, Array]]:
    """(values, presence) by joined key of what is a number in a VectorEnv's infos."""
    found: dict[str, tuple[Array, Array]] = {}
    for key, value in infos.items():
        if key.startswith("_"):
            continue
        if isinstance(value, dict):
            found |= numeric(value, f"{prefix}{key}/")
        elif value.dtype != object and key not in ("action_mask", "to_play"):
            found[prefix + key] = (value, infos[f"_{key}"])
    return found


def assert_infos_equal(columns: list[InfoColumn], infos: dict[str, Any], num_slots: int) -> None:
    expected = numeric(infos)
    assert {column.key for column in columns} == set(expected)
    for column in columns:
        values, present = expected[column.key]
        np.testing.assert_array_equal(column.rows, np.flatnonzero(present))
        np.testing.assert_array_equal(column.data, values[present])
        assert column.data.dtype == values.dtype, column.key


def soft_rows(rows: StepRows) -> Array:
    return np.flatnonzero(rows.flags & SOFT)
