"""Which host serves a lane: the native one only where it meets every want, else the slots.

Invariant: whatever the host, the reason says why it is this one (test_every_choice_of_host_has_its_reason).
"""

from __future__ import annotations

import logging

from asyncrl.errors import ServerRefused, UnsupportedSpace
from asyncrl.wire._generated import env_pb2 as pb
from envserver import faults, gym_batches
from envserver.host import Host, LaneWish, Progress
from envserver.native_atari import NativeAtariHost
from envserver.native_host import NativeHost
from envserver.recipe import Recipe
from envserver.registry import EnvAlias
from envserver.slots_host import SlotsHost

log = logging.getLogger("envserver")


def build_host(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
    """The environments of a lane; ServerRefused: BAD_KWARGS, BUILD_FAILED, or UNSUPPORTED for a want nobody meets."""
    alias.check_kwargs(wish.kwargs)
    try:
        record = wish.snapshots and alias.snapshots.mode == "replay"
        recipe = Recipe(alias, wish.kwargs, wish.render, record=record, capturable=wish.snapshots)
        why_not = recipe.why_not_rendered()
    except Exception as error:
        raise ServerRefused("BUILD_FAILED", faults.describe(error, f"looking up {alias.alias}")) from error
    if wish.render and why_not:
        raise _not_rendered(alias, why_not)
    try:
        host = _build(recipe, wish, progress)
    except UnsupportedSpace as error:
        raise ServerRefused("BUILD_FAILED", f"{alias.alias}: {error}") from error
    # What a function makes has been seen only now.
    if wish.render and (why_not := recipe.why_not_rendered()):
        host.close()
        raise _not_rendered(alias, why_not)
    return host


def _not_rendered(alias: EnvAlias, why_not: str) -> ServerRefused:
    return ServerRefused("UNSUPPORTED", f"{alias.alias} cannot be rendered: {why_not}; or open the lane without render")


def _build(recipe: Recipe, wish: LaneWish, progress: Progress) -> Host:
    if wish.host == pb.SLOTS:
        return SlotsHost(recipe, wish, progress, "slots: asked for")
    why_not = why_not_native(recipe, wish)
    if not why_not:
        try:
            return _build_native(recipe, wish, progress)
        except Exception as error:
            why_not = faults.describe(error, "building it")
            if wish.host == pb.NATIVE:
                raise ServerRefused("BUILD_FAILED", f"native host of {recipe.alias.alias}: {why_not}") from error
            log.warning("native host of %s: %s", recipe.alias.alias, why_not, exc_info=error)
    if wish.host == pb.NATIVE:
        raise ServerRefused("UNSUPPORTED", f"{recipe.alias.alias} has no native host for this: {why_not}")
    return SlotsHost(recipe, wish, progress, f"slots: {why_not}")


def why_not_native(recipe: Recipe, wish: LaneWish) -> str:
    """Why the native host cannot serve this wish, and what to pass instead; empty where it can."""
    if recipe.registered is None:
        return "it is made by a function, one environment at a time"
    if wish.num_slots == 0:
        return "a lane without slots steps nothing"
    if wish.snapshots:
        return "states of a vector environment cannot be captured: do without snapshots"
    if wish.render:
        return "native hosts cannot render: do without render"
    if recipe.alias.atari:
        return NativeAtariHost.why_not(recipe, wish)
    if recipe.registered.vector_entry_point is None:
        return f"{recipe.alias.env_id} has no vector environment of its own"
    if recipe.registered.additional_wrappers:
        return f"{recipe.alias.env_id} is registered with wrappers, which its vector environment would lack"
    try:
        return NativeHost.why_not(recipe, wish)
    except Exception as error:  # the module of the vector environment cannot be imported
        return faults.describe(error, "looking up its vector environment")


def _build_native(recipe: Recipe, wish: LaneWish, progress: Progress) -> Host:
    reason = "native: its vector environment meets every want"
    host = NativeAtariHost if recipe.atari is not None else NativeHost
    built = host(recipe, wish, progress, reason)
    if gym_batches.has_text(built.single_observation_space) or gym_batches.has_text(built.single_action_space):
        built.close()
        raise UnsupportedSpace("strings have no batched form")
    return built
