"""Search in Gymnasium environments of this process; no server, no network.

    env.reset(seed=1)
    result = await search_env(env, SearchConfig(leaf="rollout", num_simulations=100))
    env.step(action_of(env.action_space, result))

States are deep copies. What never changes need not be copied: specs are shared, bounds of spaces that nobody has drawn
from, and whatever attributes of the environment `shared` names. A space that was drawn from is luck, and copied.

Invariants: the environment that is searched from is not touched (test_searching_leaves_the_environment_alone,
test_what_steps_draw_from_a_space_is_drawn_from_a_copy); a state goes on as the environment itself would
(test_copies_go_on_as_the_original), unless its luck begins anew, which is then all of it
(test_a_search_does_not_know_how_the_coin_will_fall); environments whose copies are silently new ones are refused
(test_environments_that_copy_as_new_ones_are_refused); infos that say nothing are read as lanes read them
(test_infos_that_say_nothing_are_read_alike).
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search.config import SearchConfig
from asyncrl.search.expanding import Root
from asyncrl.search.local_luck import reseed
from asyncrl.search.planner import search
from asyncrl.search.playing import SearchResult
from asyncrl.search.simulator import SNAPSHOT_GONE, Evaluate, Expansion, Outcome, Proposal, Propose, Rollout
from asyncrl.search.uniform_actions import AnySpace, draws_of

AnyEnv = gymnasium.Env[Any, Any]

ACTION_MASK, TO_PLAY = "action_mask", "to_play"  # in infos
_SHARED: Final = ("spec", "metadata", "_saved_kwargs", "_cached_spec")
_FLAT: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
_TABLES: Final = ("P", "desc", "initial_state_distrib")  # of Gymnasium's toy environments


async def search_env(
    env: AnyEnv,
    config: SearchConfig,
    rng: np.random.Generator | None = None,
    *,
    obs: Any = None,
    info: Mapping[str, Any] | None = None,
    evaluate: Evaluate | Propose | None = None,
) -> SearchResult:
    """Search from where `env` stands. It has been reset, its episode is not over, and it is left as it is.

    `obs` and `info` are what it returned last: `evaluate` needs the one, masks and players are in the other. Where an
    environment names the player when it changes alone, `info` has to have whom it named last. Without
    `rng` every call draws the same noise. Where `config.num_sampled` is set and nobody proposes actions, they are
    uniform. Cancelled, it leaves nothing.
    """
    simulator = LocalSimulator(env)
    if evaluate is None and config.num_sampled:
        evaluate = UniformProposals(env.action_space)
    root = simulator.root(env, obs, info)
    generator = np.random.default_rng(0) if rng is None else rng
    [result] = await search([root], simulator, evaluate, config, generator)
    return result


def action_of(space: AnySpace, result: SearchResult) -> Any:
    """What `env.step` takes, of the action that a search chose."""
    return value_of(space, result.chosen)


class _State(NamedTuple):
    """A copy that nobody steps, and what its infos said."""

    env: AnyEnv
    mask: Array | None
    to_play: int | None


class LocalSimulator:
    """Simulates on copies of environments like `env`. What they raise ends the search that asked."""

    def __init__(self, env: AnyEnv, shared: Sequence[str] = ()) -> None:
        for layer in layers(env):
            if isinstance(layer, EzPickle):
                raise ConfigError(
                    f"copies of {type(layer).__name__} begin anew (EzPickle): serve it with envserver and search there"
                )
        tables = _TABLES if type(env.unwrapped).__module__.startswith("gymnasium.envs.toy_text") else ()
        self._shared = (*_SHARED, *tables, *shared)
        self._space = env.action_space
        self._draws = draws_of(self._space)
        self._states: dict[Any, _State] = {}
        self._num_roots = 0

    @property
    def num_states(self) -> int:
        """States that are held, those of roots among them."""
        return len(self._states)

    def root(self, env: AnyEnv, obs: Any = None, info: Mapping[str, Any] | None = None) -> Root:
        """A state to search from: a copy of `env` as it stands. `release` forgets it."""
        info = {} if info is None else info
        state = _State(_with_own_spaces(self._copy(env)), *_said(info, None))
        self._num_roots += 1
        self._states[-self._num_roots] = state  # the search's own names are above 0
        mask = state.mask
        if mask is not None and not isinstance(self._space, spaces.Discrete | spaces.MultiDiscrete):
            raise ConfigError(f"action masks are for Discrete and MultiDiscrete spaces: {self._space} has none")
        if mask is None and isinstance(self._space, spaces.Discrete):
            mask = np.ones(int(self._space.n), np.bool_)
        leaves = [] if obs is None else leaves_of(obs)
        return Root(state=-self._num_roots, obs=leaves, mask=mask, to_play=state.to_play)

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        """See `Simulator`. Other tasks get their turn after each expansion. Cancelled, it keeps what it has made."""
        outcomes: list[Outcome] = []
        for expansion in wave:
            outcomes.append(self._simulate(expansion))
            await asyncio.sleep(0)
        return outcomes

    async def release(self, states: Sequence[int]) -> None:
        """See `Simulator`."""
        for state in states:
            self._states.pop(state, None)

    # ------------------------------------------------------------------------------------------------ one expansion

    def _simulate(self, asked: Expansion) -> Outcome:
        parent = self._states.get(asked.parent)
        if parent is None:
            return Outcome(SNAPSHOT_GONE)
        env = self._copy(parent.env, None if asked.rng == "frozen" else asked.seed)
        obs: Any = ()
        rewards: list[float] = []
        mask, to_play = parent.mask, parent.to_play
        terminated = truncated = False
        for step in range(len(asked.actions[0]) if asked.actions else 0):
            action = value_of(self._space, [leaf[step] for leaf in asked.actions])
            obs, reward, terminated, truncated, info = env.step(action)
            rewards.append(float(reward))
            mask, to_play = _said(info, to_play)
            if terminated or truncated:
                break
        ended = terminated or truncated
        now = _State(env, mask, to_play)
        keeps = asked.keep_as is not None and not ended
        if keeps:
            self._states[asked.keep_as] = now
        rollout_return = 0.0
        if asked.rollout is not None and not ended:
            rollout_return = self._roll_out(now, asked.rollout, keeps)
        leaves = leaves_of(obs) if rewards else ()
        return Outcome(
            obs=leaves,
            rewards=rewards,
            terminated=bool(terminated),
            truncated=bool(truncated),
            mask=mask,
            to_play=to_play,
            kept=keeps,
            rollout_return=rollout_return,
        )

    def _roll_out(self, start: _State, how: Rollout, copies: bool) -> float:
        """The return of the player to move at the start."""
        env = self._copy(start.env) if copies else start.env
        draw = self._draws(how.seed)
        mask, mover, total, discount = start.mask, start.to_play, 0.0, 1.0
        for _ in range(how.steps):
            _obs, reward, terminated, truncated, info = env.step(draw(mask))
            total += discount * (float(reward) if mover == start.to_play else -float(reward))
            if terminated or truncated:
                break
            discount *= how.discount
            mask, mover = _said(info, mover)
        return total

    def _copy(self, env: AnyEnv, seed: int | None = None) -> AnyEnv:
        """With a `seed` its luck begins anew."""
        memo: dict[int, Any] = {}
        for layer in layers(env):
            for name, value in vars(layer).items():
                if name in self._shared:
                    memo[id(value)] = value
                elif type(value) in _FLAT and value._np_random is None:
                    # It is given its generator when it is first drawn from: each copy its own. Not by `deepcopy`,
                    # which would copy the bounds, too.
                    memo[id(value)] = copy.copy(value)
        num_shared = len(memo)
        copied = copy.deepcopy(env, memo)
        if seed is not None:
            reseed(copied, itertools.islice(memo.values(), num_shared, None), seed)
        return copied


def layers(env: AnyEnv) -> list[AnyEnv]:
    """The environment and what it wraps, from the outside in."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def _with_own_spaces(copied: AnyEnv) -> AnyEnv:
    """Spaces that a class declares are those of all its environments, and copies of one have them, too."""
    for layer in layers(copied):
        for name in ("action_space", "observation_space"):
            of_class = getattr(type(layer), name, None)
            if isinstance(of_class, spaces.Space) and name not in vars(layer):
                setattr(layer, name, copy.deepcopy(of_class))
    return copied


# ------------------------------------------------------------------------------------------------ values and actions


class UniformProposals:
    """Proposes uniformly random actions of a space, and thinks nothing of states. ConfigError for a Discrete one."""

    def __init__(self, space: AnySpace) -> None:
        if isinstance(space, spaces.Discrete):
            raise ConfigError("actions of a Discrete space are listed, not sampled: leave num_sampled at 0")
        self._draws = draws_of(space)

    async def __call__(self, obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        """See `Propose`."""
        rows: list[list[list[Array]]] = []
        for row, key in enumerate(keys.tolist()):
            draw, allowed = self._draws(key), None if mask is None else mask[row]
            rows.append([leaves_of(draw(allowed)) for _ in range(num_sampled)])
        actions = [np.array([[value[i] for value in row] for row in rows]) for i in range(len(rows[0][0]))]
        return Proposal(actions, np.zeros((len(keys), num_sampled)), np.zeros(len(keys)))


def leaves_of(value: Any) -> list[Array]:
    """The arrays of an observation or action; those of a dict in the order of its keys."""
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in leaves_of(value[key])]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves_of(part)]
    return [np.asarray(value)]


def value_of(space: AnySpace, leaves: Sequence[Array]) -> Any:
    """The value whose arrays these are; of an enumerated action, the number counts from 0."""
    if isinstance(space, spaces.Discrete):
        return int(leaves[0]) + int(space.start)
    return _value(space, list(leaves))


def _value(space: AnySpace, leaves: list[Array]) -> Any:
    """Takes the space's leaves off the front of the list."""
    if isinstance(space, spaces.Dict):
        return {key: _value(space[key], leaves) for key in sorted(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_value(part, leaves) for part in space)
    leaf = leaves.pop(0)
    return int(leaf) if isinstance(space, spaces.Discrete) else np.asarray(leaf)


def _said(info: Mapping[str, Any], player: int | None) -> tuple[Array | None, int | None]:
    """Mask and player after a step, as lanes have them: no mask allows everything, no player is the same as before."""
    return _mask_of(info), int(float(info[TO_PLAY])) if TO_PLAY in info else player


def _mask_of(info: Mapping[str, Any]) -> Array | None:
    mask = info.get(ACTION_MASK)
    if isinstance(mask, tuple):  # as MultiDiscrete spaces take it, place by place
        return np.concatenate([np.asarray(place, np.bool_).reshape(-1) for place in mask])
    return None if mask is None else np.array(mask, np.bool_)
