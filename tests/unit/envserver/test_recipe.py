"""Specs of aliases: one for both hosts, another for other dynamics."""

from __future__ import annotations

import importlib.metadata

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.native_atari import MEASURED, ale_version
from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from tests.unit.envserver import zoo
from tests.unit.envserver.driving import RESET_ALL, build


@pytest.mark.parametrize("option", ["CartPole-v1", 'pong=ALE/Pong-v5{"grayscale":false,"stack":1}', "ALE/Pong-v5"])
def test_both_hosts_show_one_spec(option: str) -> None:
    """Lanes of one run may be served by either."""
    if "ALE" in option and ale_version() < MEASURED:
        pytest.skip("this ale-py has no vector environment to rely on")
    wants = {"autoreset": pb.NEXT_STEP}
    native, slots = (build(option, 1, host=host, **wants).spec for host in (pb.NATIVE, pb.SLOTS))
    assert native.to_proto() == slots.to_proto()


def test_what_fixes_the_dynamics_is_in_the_build() -> None:
    """Versions, ROM, id and keyword arguments; another of any is another hash."""
    recipe = Recipe(parse_env_option("pong=ALE/Pong-v5"), {})
    for part in ("gymnasium", "ale-py", "ALE/Pong-v5", "preprocessed", "rom 60e0ea3cbe0913d39803477945e9e5ec"):
        assert part in recipe.build()
    assert importlib.metadata.version("ale-py") in recipe.build()
    options = ["x=CartPole-v1", "x=Pendulum-v1", 'x=CartPole-v1{"sutton_barto_reward":true}', "x=MountainCar-v0"]
    assert len({build(option, 1).spec.hash() for option in options}) == 4
    with_kwargs = build("x=CartPole-v1", 1, kwargs={"max_episode_steps": 100}).spec
    assert with_kwargs.hash() != build("x=CartPole-v1", 1).spec.hash()


def test_own_packages_are_named_with_their_version() -> None:
    """A function's build has the distribution that it came from, where there is one."""
    recipe = Recipe(parse_env_option("x=gymnasium.envs.classic_control.pendulum:PendulumEnv"), {})
    assert recipe.build().endswith("| gymnasium.envs.classic_control.pendulum:PendulumEnv")
    assert recipe.build().count("gymnasium " + importlib.metadata.version("gymnasium")) == 2


@pytest.mark.parametrize(
    ("option", "steps", "render_mode", "fps"),
    [
        ("CartPole-v1", 500, "rgb_array", 50.0),
        ('x=CartPole-v1{"max_episode_steps":7}', 7, "rgb_array", 50.0),
        ('x=CartPole-v1{"max_episode_steps":-1}', 0, "rgb_array", 50.0),
        ("ALE/Pong-v5", 27_000, "rgb_array", 30.0),
        ('x=ALE/Pong-v5{"frameskip":2}', 54_000, "rgb_array", 30.0),
        ('x=ALE/Pong-v5{"max_episode_steps":9}', 9, "rgb_array", 30.0),
        (zoo.options("x", "mixed"), 0, "", 0.0),
        ("x=gymnasium.envs.classic_control.pendulum:PendulumEnv", 0, "rgb_array", 30.0),
    ],
)
def test_facts_of_the_spec(option: str, steps: int, render_mode: str, fps: float) -> None:
    """Time limit, rendering and frame rate, from the registration, the class and the kwargs."""
    spec = build(option, 1, host=pb.SLOTS).spec
    assert (spec.max_episode_steps, spec.render_mode, spec.render_fps) == (steps, render_mode, fps)


@pytest.mark.parametrize("function", ["picture", "picture_by_kwargs"])
def test_what_a_function_makes_is_rendered(function: str) -> None:
    """One that takes the mode is given it where images are wanted; its spec says what it can in any case."""
    host = build(zoo.options("x", function), 2, render=True)
    host.reset(RESET_ALL)
    assert [image.shape for image in host.render([0, 1])] == [(2, 3, 3)] * 2
    assert (host.spec.render_mode, host.spec.render_fps) == ("rgb_array", 12.0)
    unasked = build(zoo.options("x", function), 1)
    assert unasked.spec.hash() == host.spec.hash() == build(zoo.options("x", function), 1, render=True).spec.hash()
    for each in (host, unasked):
        each.close()


def test_the_stack_is_named() -> None:
    """The frame-stack codec applies to preprocessed games with more than one frame."""
    assert build("ALE/Pong-v5", 1).spec.stack_leaf == 0
    assert build("ALE/Pong-v5", 1).spec.stack_depth == 4
    assert build('x=ALE/Pong-v5{"stack":1}', 1).spec.stack_leaf is None
    assert build("CartPole-v1", 1).spec.stack_leaf is None
