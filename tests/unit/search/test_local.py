"""Search on environments of this process."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle

from asyncrl.errors import ConfigError
from asyncrl.search import Expansion, Rollout, SearchConfig, search
from asyncrl.search.local import LocalSimulator, UniformProposals, action_of, leaves_of, search_env, value_of
from tests.unit.search.locks import Locks

ENVS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "FrozenLake-v1": {"is_slippery": True},
    "CliffWalking-v1": {"is_slippery": True},
    "Blackjack-v1": {},
    "Pendulum-v1": {},
    "Taxi-v4": {},
}


def made(env_id: str, seed: int = 1) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(env_id, **ENVS[env_id])
    env.reset(seed=seed)
    env.action_space.seed(seed)
    return env


def expansion(actions: list[Any], parent: int = -1, keep_as: int | None = None, **changes: Any) -> Expansion:
    leaves = [np.array([leaves_of(action)[0] for action in actions])] if actions else []
    return Expansion(0, parent, leaves, keep_as, "frozen", 7, None)._replace(**changes)


def told(obs: Any) -> bytes:
    return b"".join(leaf.tobytes() for leaf in leaves_of(obs))


@pytest.mark.parametrize("env_id", ENVS)
async def test_copies_go_on_as_the_original(env_id: str) -> None:
    """One action after the other from state to state, luck frozen: what the environment itself does, byte for byte."""
    env = made(env_id)
    simulator = LocalSimulator(env)
    parent = int(simulator.root(env).state)  # type: ignore[call-overload]
    for step in range(1, 40):
        action = env.action_space.sample()
        [outcome] = await simulator.simulate([expansion([action], parent, keep_as=step)])
        obs, reward, terminated, truncated, _info = env.step(action)
        assert (outcome.rewards, outcome.terminated, outcome.truncated) == ([reward], terminated, truncated)
        assert told(obs) == b"".join(leaf.tobytes() for leaf in outcome.obs)
        assert outcome.kept is not (terminated or truncated)
        if terminated or truncated:
            break
        parent = step


@pytest.mark.parametrize("env_id", ENVS)
async def test_several_steps_are_steps_one_by_one(env_id: str) -> None:
    """Five actions in one expansion, and rewards up to where the episode ends."""
    env = made(env_id, 3)
    simulator = LocalSimulator(env)
    root = simulator.root(env)
    actions = [env.action_space.sample() for _ in range(5)]
    [outcome] = await simulator.simulate([expansion(actions, int(root.state))])  # type: ignore[call-overload]
    rewards = []
    for action in actions:
        _obs, reward, terminated, truncated, _info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    assert list(outcome.rewards) == rewards


async def test_searching_leaves_the_environment_alone() -> None:
    """Before and after a search: the same future, the same luck."""
    for env_id in ("FrozenLake-v1", "Pendulum-v1"):
        env, other = made(env_id), made(env_id)
        config = SearchConfig(
            leaf="rollout", num_simulations=20, rollout_steps=10, num_sampled=0 if env_id == "FrozenLake-v1" else 4
        )
        await search_env(env, config)
        for _ in range(20):
            action = other.action_space.sample()
            one, two = env.step(action), other.step(action)
            assert told(one[0]) == told(two[0])
            assert one[1:4] == two[1:4]
            if one[2] or one[3]:
                break


class Drawing(gymnasium.Env[Any, Any]):
    """Each step draws from its spaces, and pays what came of it."""

    observation_space = spaces.Discrete(100)

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return int(self.observation_space.sample()), float(self.action_space.sample()), False, False, {}


class Noisy(gymnasium.ActionWrapper[Any, Any, Any]):
    """Plays what its own space draws."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(4)

    def action(self, _action: int) -> int:
        return int(self.action_space.sample())


@pytest.mark.parametrize("rng", ["resample", "frozen"])
async def test_what_steps_draw_from_a_space_is_drawn_from_a_copy(rng: Any) -> None:
    """Spaces of an environment, of its class and of a wrapper go on as if nobody had searched."""
    config = SearchConfig(leaf="rollout", num_simulations=10, rollout_steps=5, rng=rng)

    async def futures(searches: bool) -> list[Any]:
        drawing, lake = Drawing(), Noisy(gymnasium.make("FrozenLake-v1", is_slippery=False))
        Drawing.observation_space.seed(1)
        found: list[Any] = []
        for env in (drawing, lake):
            env.reset(seed=1)
            env.action_space.seed(1)
            for _ in range(6):
                if searches:
                    await search_env(env, config)
                found.append(env.step(0)[:3])
                if found[-1][2]:
                    break
        return found

    assert await futures(True) == await futures(False)


async def test_a_space_that_nobody_drew_from_stays_one() -> None:
    """A copy that draws from it makes the generator for itself."""
    env = Drawing()
    env.reset(seed=1)
    await search_env(env, SearchConfig(leaf="rollout", num_simulations=3, rollout_steps=3))
    assert env.action_space._np_random is None


async def test_luck_is_drawn_by_the_seed() -> None:
    """resample: the same seed gives the same step from the same state, other seeds other ones; frozen knows no seed."""
    env = made("FrozenLake-v1")
    simulator = LocalSimulator(env)
    parent = int(simulator.root(env).state)  # type: ignore[call-overload]

    async def landed(rng: str, seed: int) -> int:
        [outcome] = await simulator.simulate([expansion([2], parent, rng=rng, seed=seed)])
        return int(outcome.obs[0])

    assert len({await landed("frozen", seed) for seed in range(20)}) == 1
    assert len({await landed("resample", seed) for seed in range(20)}) == 3
    assert [await landed("resample", seed) for seed in range(20)] == [
        await landed("resample", seed) for seed in range(20)
    ]


async def test_what_comes_out_shares_no_memory_with_states() -> None:
    """Scribbling into an observation changes no later step."""
    env = made("CartPole-v1")
    simulator = LocalSimulator(env)
    simulator.root(env)
    [first] = await simulator.simulate([expansion([1], keep_as=1)])
    expected = [leaf.copy() for leaf in (await simulator.simulate([expansion([0], 1)]))[0].obs]
    first.obs[0][:] = 99.0
    [again] = await simulator.simulate([expansion([0], 1)])
    np.testing.assert_array_equal(again.obs[0], expected[0])


async def test_rollouts_are_discounted_and_end() -> None:
    """CartPole pays 1 a step: a rollout that ends after k steps returns the geometric sum of k, at most as asked."""
    env = made("CartPole-v1")
    simulator = LocalSimulator(env)
    simulator.root(env)
    lengths = set()
    for seed in range(10):
        [outcome] = await simulator.simulate([expansion([], rollout=Rollout(500, 0.9, seed))])
        k = np.log1p(-outcome.rollout_return * 0.1) / np.log(0.9)
        assert k == pytest.approx(round(k), abs=1e-6)
        lengths.add(round(k))
        [short] = await simulator.simulate([expansion([], rollout=Rollout(3, 0.9, seed))])
        assert short.rollout_return == pytest.approx(1 + 0.9 + 0.81)
    assert len(lengths) > 1
    assert min(lengths) > 5


async def test_a_rollout_is_for_whoever_moves_first() -> None:
    """Two players take turns, and each move pays its mover 1: + − + − from the mover's side."""
    env = Nim(9)
    env.reset()
    simulator = LocalSimulator(env)
    simulator.root(env, info=env.infos())
    [outcome] = await simulator.simulate([expansion([], rollout=Rollout(3, 0.5, 1))])
    assert outcome.rollout_return == 1 - 0.5 + 0.25
    assert outcome.rewards == []


async def test_states_that_were_released_are_gone() -> None:
    """The status says so; releasing again is no error."""
    env = made("CartPole-v1")
    simulator = LocalSimulator(env)
    simulator.root(env)
    await simulator.simulate([expansion([1], keep_as=5)])
    assert simulator.num_states == 2
    await simulator.release([5, 6])
    [outcome] = await simulator.simulate([expansion([1], 5)])
    assert outcome.status == "snapshot_gone"
    await simulator.release([5, -1])
    assert simulator.num_states == 0


class Forgetting(gymnasium.Env[Any, Any], EzPickle):
    """Copies of it begin anew."""

    observation_space = action_space = spaces.Discrete(2)


def test_environments_that_copy_as_new_ones_are_refused() -> None:
    """EzPickle anywhere in the chain: an error that names the class."""
    with pytest.raises(ConfigError, match="Forgetting begin anew"):
        LocalSimulator(gymnasium.wrappers.TimeLimit(Forgetting(), 5))


class Nim(gymnasium.Env[Any, Any]):
    """Take 1 to 3 stones, numbered from 5; whoever takes the last one loses. Each move pays its mover 1."""

    def __init__(self, stones: int) -> None:
        self.observation_space = spaces.Discrete(stones + 1)
        self.action_space = spaces.Discrete(3, start=5)
        self._start = stones

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.stones, self.player = self._start, 0
        return self.stones, self.infos()

    def step(self, action: np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert 5 <= action <= 7
        self.stones -= int(action) - 4
        self.player = 1 - self.player
        return self.stones, 1.0, self.stones == 0, False, self.infos()

    def infos(self) -> dict[str, Any]:
        mask = np.arange(1, 4) <= self.stones
        return {"action_mask": mask.astype(np.int8), "to_play": self.player}


class Misery(Nim):
    """The last stone costs its taker 1, nothing else counts."""

    def step(self, action: np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
        obs, _reward, terminated, truncated, info = super().step(action)
        return obs, -1.0 if terminated else 0.0, terminated, truncated, info


@pytest.mark.parametrize("stones", range(2, 9))
async def test_a_small_game_is_won(stones: int) -> None:
    """Leave 1, 5 or 9: players, masks and the start of the action space come from the environment."""
    if stones % 4 == 1:
        return
    env = Misery(stones)
    _obs, info = env.reset()
    config = SearchConfig(leaf="rollout", num_simulations=300, rng="frozen", discount=1.0)
    result = await search_env(env, config, info=info)
    assert result.tree.check_valid() == (True, "")
    assert (stones - (int(action_of(env.action_space, result)) - 4)) % 4 == 1
    assert result.root_value > 0


async def test_an_evaluator_sees_observations_masks_and_players() -> None:
    """What the environment told last goes in with the root, what it tells then with the leaves."""
    seen: list[Any] = []

    async def evaluate(obs: Any, mask: Any, to_play: Any) -> tuple[Any, Any]:
        seen.append((obs[0].tolist(), mask.tolist(), to_play.tolist()))
        return np.zeros(mask.shape), np.zeros(len(mask))

    env = Misery(2)
    obs, info = env.reset()
    await search_env(env, SearchConfig(num_simulations=1, rng="frozen"), obs=obs, info=info, evaluate=evaluate)
    assert seen == [([2], [[True, True, False]], [0]), ([1], [[True, False, False]], [1])]


HYBRID = spaces.Dict(
    kind=spaces.Discrete(3, start=1), push=spaces.Box(-1, 1, (2,), np.float32), also=spaces.Tuple([spaces.Discrete(2)])
)


def test_values_and_leaves_round_trip() -> None:
    """Nested spaces, in the order of their keys."""
    HYBRID.seed(0)
    for _ in range(5):
        value = HYBRID.sample()
        back = value_of(HYBRID, leaves_of(value))
        assert HYBRID.contains(back)
        assert told(back) == told(value)
    assert value_of(spaces.Discrete(3, start=5), [np.array(1)]) == 6


async def test_uniform_proposals_follow_from_keys() -> None:
    """Each key has its own actions, whoever is asked about beside it; all of them are actions of the space."""
    propose = UniformProposals(HYBRID)
    keys = np.array([3, 9, 2**63], np.uint64)
    together = await propose([], None, keys, 6)
    for row, key in enumerate(keys):
        alone = await propose([], None, np.array([key]), 6)
        for one, other in zip(alone.actions, together.actions, strict=True):
            np.testing.assert_array_equal(one[0], other[row])
        for k in range(6):
            assert HYBRID.contains(value_of(HYBRID, [leaf[row, k] for leaf in together.actions]))
    assert len({leaf.tobytes() for leaf in together.actions[2]}) == 3
    np.testing.assert_array_equal(together.logits, np.zeros((3, 6)))


@pytest.mark.parametrize("leaf", ["zero", "rollout"])
async def test_sampled_actions_keep_to_the_masks(leaf: Any) -> None:
    """At the root, below it and in rollouts: nothing that is not allowed is tried, and nothing fails."""
    env = Locks()
    _obs, info = env.reset(seed=1)
    config = SearchConfig(leaf=leaf, num_simulations=30, num_sampled=4, rollout_steps=5, rng="frozen", discount=0.5)
    simulator = LocalSimulator(env)
    root = simulator.root(env, info=info)
    propose = UniformProposals(env.action_space)
    [result] = await search([root], simulator, propose, config, np.random.default_rng(0))
    assert not result.failures
    assert result.num_simulations == 30
    assert (result.tree.reward >= 0).all()
    assert (result.tree.value >= 0).all()
    assert result.tree.depth() > 1


async def test_masks_of_actions_that_have_none_are_refused() -> None:
    """By name, where the environment tells one all the same."""
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=1)
    with pytest.raises(ConfigError, match="action masks are for Discrete and MultiDiscrete"):
        await search_env(env, SearchConfig(leaf="zero", num_sampled=2), info={"action_mask": np.ones(3, np.int8)})


async def test_actions_that_can_be_listed_are_not_sampled() -> None:
    """A Discrete space: the index of a proposal is not the number of an action."""
    env = made("FrozenLake-v1")
    config = SearchConfig(leaf="rollout", num_simulations=4, num_sampled=3)
    with pytest.raises(ConfigError, match="leave num_sampled at 0"):
        await search_env(env, config)


async def test_errors_of_the_environment_are_the_callers() -> None:
    """An environment of this process that raises ends the search with its own error, and nothing is held."""

    class Broken(Misery):
        def step(self, action: np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
            if self.stones < 4:
                raise ZeroDivisionError
            return super().step(action)

    env = Broken(6)
    _obs, info = env.reset()
    simulator = LocalSimulator(env)
    root = simulator.root(env, info=info)
    config = SearchConfig(leaf="zero", num_simulations=50)
    with pytest.raises(ZeroDivisionError):
        await search([root], simulator, None, config, np.random.default_rng(0))
    assert simulator.num_states == 1
