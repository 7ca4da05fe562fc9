"""Which codec is used, by trying."""

from __future__ import annotations

from typing import Any

import ale_py  # noqa: F401  registers the ids
import gymnasium
import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.atari import AtariSettings
from envserver.snapshots import probing
from envserver.snapshots.copying import CopyCodec
from envserver.snapshots.probing import choose, fields_codec
from envserver.snapshots.replay import Recorder
from tests.unit.envserver.snapshots import toys


def choice(mode: str, make: Any) -> tuple[str, Any, bool]:
    chosen, reason = choose(mode, make)
    assert reason
    return (
        ("none", pb.SNAPSHOT_NONE, False)
        if chosen is None
        else (
            chosen.codec.name,
            chosen.codec.support,
            chosen.codec.exportable,
        )
    )


PROBED, EXACT, NONE = pb.SNAPSHOT_PROBED, pb.SNAPSHOT_EXACT, pb.SNAPSHOT_NONE


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: gymnasium.make("CartPole-v1"), ("fields", PROBED, True)),
        (lambda: gymnasium.make("Blackjack-v1"), ("fields", PROBED, True)),
        (toys.walk, ("fields", PROBED, True)),
        (toys.nested, ("fields", PROBED, True)),
        (toys.own_state, ("own state", EXACT, True)),
        (toys.copy_only, ("deepcopy", PROBED, False)),
        (toys.sampling, ("deepcopy", PROBED, False)),
        (toys.ez_pickle, ("none", NONE, False)),
        (toys.uncopyable, ("none", NONE, False)),
    ],
)
def test_the_best_codec_is_chosen(make: Any, wanted: tuple[Any, ...]) -> None:
    """Own state before attributes before copies; none where nothing holds the state."""
    assert choice("auto", make) == wanted


@pytest.mark.parametrize(
    ("mode", "make", "wanted"),
    [
        ("native", toys.walk, ("none", NONE, False)),
        ("native", toys.own_state, ("own state", EXACT, True)),
        ("key_state", toys.key_state, ("key state", PROBED, True)),
        ("key_state", toys.walk, ("none", NONE, False)),
        ("replay", lambda: Recorder(toys.uncopyable()), ("replay", PROBED, True)),
        ("replay", toys.uncopyable, ("none", NONE, False)),
    ],
)
def test_a_mode_that_was_asked_for_is_the_only_one_tried(mode: str, make: Any, wanted: tuple[Any, ...]) -> None:
    """The owner's choice is not replaced by another one."""
    assert choice(mode, make) == wanted


def test_a_codec_that_loses_state_is_not_used() -> None:
    """An own state without the time, a hidden counter behind a closure, luck that nobody holds: the probe sees it."""
    chosen, reason = choose("native", toys.forgetful)
    assert chosen is None
    assert "differs" in reason
    counter = [0]

    class Hidden(toys.WalkEnv):
        def step(self, action: Any) -> Any:
            counter[0] += 1
            obs, reward, *rest = super().step(action)
            return obs, reward + counter[0], *rest

    chosen, reason = choose("auto", Hidden)
    assert chosen is None
    assert reason.count("differs") == 2, "attributes and copies"


def test_last_actions_that_are_not_in_the_state_are_noticed() -> None:
    """What ALE's own sticky actions do: now and then the action before the snapshot is taken once more."""

    class Sticky(toys.OwnStateEnv):
        last = 0

        def step(self, action: Any) -> Any:
            if self.np_random.random() >= 0.25:
                self.last = action
            return super().step(self.last)

    assert choose("native", Sticky)[0] is None


def test_an_environment_that_raises_has_no_snapshots() -> None:
    """The reason names the exception; nothing of it gets out."""

    class Raises(toys.WalkEnv):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("in a step")

    chosen, reason = choose("auto", Raises)
    assert chosen is None
    assert "ZeroDivisionError: in a step" in reason


def test_what_has_no_bytes_stays() -> None:
    """A state that can be held but not written is not exportable, and the codec is used all the same."""

    class Ranges(toys.WalkEnv):
        def __init__(self) -> None:
            super().__init__()
            self.range = range(3)

    assert choice("auto", Ranges) == ("fields", PROBED, False)


def test_a_slow_simulator_is_believed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first trial, if there is no more time."""
    resets: list[int | None] = []

    class Counted(toys.WalkEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            resets.append(seed)
            return super().reset(seed=seed, options=options)

    monkeypatch.setattr(probing, "PATIENCE_S", 0.0)
    assert choice("auto", Counted)[0] == "fields"
    few = len(resets)
    monkeypatch.setattr(probing, "PATIENCE_S", 60.0)
    assert choice("auto", Counted)[0] == "fields"
    assert len(resets) - few >= few + len(probing.TRIALS) - 1


def test_what_was_tried_is_closed() -> None:
    """All environments but the one that is handed on."""
    made: list[Any] = []

    class Closing(toys.CopyOnlyEnv):
        closed = False

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            self.closed = True
            raise OSError("closing is not easy")

    chosen, _ = choose("auto", Closing)
    assert chosen is not None
    assert isinstance(chosen.codec, CopyCodec)
    assert [env.closed for env in made].count(False) == 1
    assert chosen.scratch is made[-1]


def test_attributes_are_the_second_choice() -> None:
    """The codec of attributes is a probed one."""
    env = toys.walk()
    env.reset(seed=1)
    assert fields_codec(env).support == PROBED


@pytest.mark.parametrize("wrap", [None, lambda env: gymnasium.wrappers.TransformReward(env, float)])
def test_only_known_games_are_believed(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper that nobody knows makes a game one that has to be tried."""
    probed: list[Any] = []
    monkeypatch.setattr(probing, "_probe", lambda *of: probed.append(of))

    def make() -> Any:
        env = AtariSettings.of("ALE/Pong-v5", {}).make(None, capturable=True)
        return env if wrap is None else wrap(env)

    assert choice("auto", make) == ("ale", EXACT, True)
    assert len(probed) == (wrap is not None)
