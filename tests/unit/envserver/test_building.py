"""The choice between the hosts: every want, every refusal, and the reason that goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from envserver.building import build_host
from envserver.host import LaneWish
from envserver.native_atari import MEASURED, ale_version
from envserver.registry import EnvAlias, parse_env_option
from tests.unit.envserver import zoo
from tests.unit.envserver.driving import build, registered

PONG = 'pong=ALE/Pong-v5{"noop_max":0}'
TOO_OLD = "ale-py is older than" if ale_version() < MEASURED else ""
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("CartPole-v1", {"autoreset": pb.SAME_STEP}, "not SAME_STEP: pass NEXT_STEP"),
    ("CartPole-v1", {"autoreset": pb.DISABLED}, "not DISABLED: pass NEXT_STEP"),
    ("CartPole-v1", {"autoreset": pb.NEXT_STEP, "per_slot_seeds": True}, "share one random generator"),
    ("CartPole-v1", {"autoreset": pb.NEXT_STEP, "masked_reset": True}, "all rows or none"),
    ("CartPole-v1", {"autoreset": pb.NEXT_STEP, "render": True}, "do without render"),
    ("CartPole-v1", {"autoreset": pb.NEXT_STEP, "num_slots": 0}, "without slots"),
    ("CartPole-v1", {"autoreset": pb.NEXT_STEP}, ""),
    ("Pendulum-v1", {"autoreset": pb.NEXT_STEP}, "no vector environment of its own"),
    (zoo.options("mixed", "mixed"), {}, "made by a function"),
    (PONG, {"per_slot_seeds": True, "masked_reset": True}, TOO_OLD),
    (PONG, {"autoreset": pb.NEXT_STEP, "masked_reset": True}, TOO_OLD),
    (PONG, {"autoreset": pb.DISABLED}, TOO_OLD or "cannot do without autoreset: pass SAME_STEP or NEXT_STEP"),
    (PONG, {"render": True}, "do without render"),
    (PONG, {"kwargs": {"difficulty": 1}}, TOO_OLD or "neither mode nor difficulty"),
    ('pong=ALE/Pong-v5{"preprocess":false}', {}, "without preprocess=false"),
    ("NoVector-v0", {"autoreset": pb.NEXT_STEP}, "looking up its vector environment raised ModuleNotFoundError"),
]


@pytest.fixture(autouse=True)
def no_vector() -> Iterator[None]:
    """An id whose vector environment lives in a module that is not installed."""
    with registered("NoVector-v0", zoo.mixed, "not_installed.vector:Env"):
        yield


@pytest.mark.parametrize(("option", "wants", "why_not"), CASES)
def test_every_choice_of_host_has_its_reason(option: str, wants: dict[str, Any], why_not: str) -> None:
    """Auto takes the native host where nothing speaks against it; NATIVE is refused with the same words."""
    count = wants.get("num_slots", 1)
    wants = {key: value for key, value in wants.items() if key != "num_slots"}
    host = build(option, count, **wants)
    assert host.kind == (pb.SLOTS if why_not else pb.NATIVE)
    assert why_not in host.reason
    assert host.reason.startswith("slots: " if why_not else "native: ")
    host.close()
    if why_not:
        with pytest.raises(ServerRefused, match="UNSUPPORTED") as refused:
            build(option, count, host=pb.NATIVE, **wants)
        assert why_not in refused.value.text
    else:
        assert build(option, count, host=pb.NATIVE, **wants).kind == pb.NATIVE


def test_an_old_ale_has_no_native_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of a later release is not taken for granted; the reason says how to get there."""
    monkeypatch.setattr("envserver.native_atari.ale_version", lambda: (0, 11))
    host = build(PONG, 1)
    assert host.kind == pb.SLOTS
    assert "ale-py is older than 0.12" in host.reason
    host.close()


def test_what_a_host_declares_is_what_was_wanted() -> None:
    """Declared abilities cover the wants of the Open that they were built for."""
    host = build(PONG, 1, per_slot_seeds=True, masked_reset=True)
    assert (host.per_slot_seeds, host.masked_reset, host.soft_ends) == (True, True, False)
    host = build("CartPole-v1", 1, autoreset=pb.NEXT_STEP)
    assert (host.per_slot_seeds, host.masked_reset, host.autoreset) == (False, False, pb.NEXT_STEP)
    host = build("CartPole-v1", 1, host=pb.SLOTS, autoreset=pb.DISABLED)
    assert (host.per_slot_seeds, host.masked_reset, host.autoreset) == (True, True, pb.DISABLED)


def test_what_cannot_be_built_says_why() -> None:
    """Unknown ids, missing modules, spaces without a wire form and functions that return something else."""
    for option, text in [
        ("NoSuchEnv-v0", "NoSuchEnv"),
        ("x=no_such_module:make", "no_such_module"),
        ("x=no_such_module:Some-v0", "no_such_module"),
        (zoo.options("x", "no_such_function"), "no_such_function"),
        (zoo.options("x", "graph"), "Graph"),
        (zoo.options("x", "not_an_env"), "no gymnasium.Env"),
        ('x=CartPole-v1{"no_such":1}', "no_such"),
        ('x=ALE/Pong-v5{"no_such":1}', "no_such"),
    ]:
        with pytest.raises(ServerRefused) as refused:
            build(option, 2)
        assert refused.value.code == "BUILD_FAILED", option
        assert text in refused.value.text


@pytest.mark.parametrize("host", [pb.SLOTS, pb.NATIVE])
def test_an_id_is_found_behind_the_module_that_registers_it(host: int) -> None:
    """`module:Id` is imported, then looked up without the module, for either host."""
    built = build("x=gymnasium.envs.classic_control:CartPole-v1", 2, host=host, autoreset=pb.NEXT_STEP)
    assert (built.kind, built.spec.max_episode_steps) == (host, 500)
    built.close()


def test_wants_that_nobody_meets_are_refused() -> None:
    """Rendering an environment that cannot be rendered; kwargs that the alias does not allow."""
    with pytest.raises(ServerRefused, match=r"UNSUPPORTED.*cannot be rendered"):
        build(zoo.options("x", "MixedEnv"), 1, render=True)
    alias = parse_env_option("CartPole-v1")
    with pytest.raises(ServerRefused, match="BAD_KWARGS"):
        build_host(alias, LaneWish(alias.alias, kwargs={"render_mode": "human"}), lambda *_: None)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("mixed", "let tests.unit.envserver.zoo:mixed take render_mode"),
        ("picture_never", "render_mode is None: let it hand it on"),
        ("plain_by_kwargs", r"returns has no 'rgb_array' in metadata\['render_modes'\]"),
    ],
)
def test_a_function_that_cannot_render_is_told_what_to_do(function: str, text: str) -> None:
    """Whether it takes no mode, swallows it, or makes something that draws nothing; without the wish it serves."""
    with pytest.raises(ServerRefused, match=text) as refused:
        build(zoo.options("x", function), 1, render=True)
    assert refused.value.code == "UNSUPPORTED"
    build(zoo.options("x", function), 1).close()


def test_kwargs_of_the_client_reach_the_environment() -> None:
    """The step limit is an ordinary keyword, for slots, native hosts and functions."""
    for option, host in [("CartPole-v1", pb.SLOTS), ("CartPole-v1", pb.NATIVE), (zoo.options("x", "mixed"), pb.SLOTS)]:
        built = build(option, 1, host=host, autoreset=pb.NEXT_STEP, kwargs={"max_episode_steps": 3})
        assert built.spec.max_episode_steps == 3


def test_an_alias_from_json_builds_the_same() -> None:
    """The nursery gets aliases as JSON."""
    alias = EnvAlias.from_json(parse_env_option(PONG).to_json())
    wish = LaneWish("pong")
    spec = build_host(alias, wish, lambda *_: None).spec
    assert spec.hash() == build(PONG, 1).spec.hash()
