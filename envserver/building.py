"""Which host serves a lane: the native one only where it meets every want, else the slots.

Invariant: whatever the host, the reason says why it is this one (test_every_choice_of_host_has_its_reason).
"""

from __future__ import annotations

from asyncrl.errors import ServerRefused, UnsupportedSpace
from asyncrl.wire._generated import env_pb2 as pb
from envserver import faults
from envserver.host import Host, LaneWish, Progress
from envserver.recipe import Recipe
from envserver.registry import EnvAlias
from envserver.slots_host import SlotsHost


def build_host(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
    """The environments of a lane; ServerRefused: BAD_KWARGS, BUILD_FAILED, or UNSUPPORTED for a want nobody meets."""
    alias.check_kwargs(wish.kwargs)
    try:
        recipe = Recipe(alias, wish.kwargs, wish.render)
        renders = recipe.render_mode != ""
    except Exception as error:
        raise ServerRefused("BUILD_FAILED", faults.describe(error, f"looking up {alias.alias}")) from error
    if wish.render and not renders:
        raise ServerRefused("UNSUPPORTED", f"{alias.alias} cannot be rendered; open the lane without render")
    try:
        return SlotsHost(recipe, wish, progress, "asked for" if wish.host == pb.SLOTS else "no native host")
    except UnsupportedSpace as error:
        raise ServerRefused("BUILD_FAILED", str(error)) from error
