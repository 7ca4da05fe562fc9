"""What Open asks of a lane process, which prepared host answers it, and what Opened says of one.

Invariant: a prepared host serves another wish only if the client could not tell it from one that was built for
that wish (test_prepared_environments_that_do_not_fit_are_closed).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from asyncrl.errors import ServerRefused
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import SMALLEST_ROW
from asyncrl.wire.requests import from_json
from envserver.host import Host, LaneWish
from envserver.lane_socket import BlockingLaneSocket
from envserver.registry import EnvAlias, Registry

if TYPE_CHECKING:
    from envserver.snapshots.codec import AnyEnv, MakeEnv
    from envserver.snapshots.desk import SnapshotDesk

log = logging.getLogger("envserver.snapshots")

PROGRESS_EVERY_S: Final = 0.1


def num_slots_of(request: pb.Open) -> int:
    """How many slots an Open asks for; refused where it has none, or where its lists do not fit together."""
    slots = len(request.fleet_slots)
    if not slots and not request.scratch:
        raise ServerRefused("BAD_REQUEST", "a lane has slots, or scratch environments, which make it a simulation lane")
    if len(request.incarnations) != slots or len(request.seeds) not in (0, slots):
        raise ServerRefused("BAD_REQUEST", f"{slots} fleet_slots need as many incarnations, and as many seeds or none")
    return slots


def wish_of(request: pb.Open) -> LaneWish:
    slots = num_slots_of(request)
    return LaneWish(
        env=request.env,
        kwargs=from_json(request.kwargs_json, "env kwargs"),
        num_slots=slots,
        fleet_slots=tuple(request.fleet_slots),
        incarnations=tuple(request.incarnations),
        run_seed=request.run_seed,
        autoreset=request.autoreset or pb.SAME_STEP,
        host=request.host,
        per_slot_seeds=request.per_slot_seeds,
        masked_reset=request.masked_reset,
        render=request.render,
        snapshots=request.snapshots or bool(request.scratch),
    )


def fits(host: Host, built_for: LaneWish, wish: LaneWish) -> bool:
    """Whether environments that were built for one wish serve another one; whose they are does not matter."""
    return (
        (built_for.env, built_for.kwargs, built_for.num_slots) == (wish.env, wish.kwargs, wish.num_slots)
        and (built_for.autoreset, built_for.render) == (wish.autoreset, wish.render)
        and built_for.snapshots == wish.snapshots
        and wish.host in (pb.HOST_UNSPECIFIED, host.kind)
        and host.per_slot_seeds >= wish.per_slot_seeds
        and host.masked_reset >= wish.masked_reset
    )


def desk_for(registry: Registry, alias: EnvAlias, host: Host, wish: LaneWish) -> SnapshotDesk | None:
    """What serves a lane's requests about snapshots; None where it was not asked for, or cannot be."""
    if not wish.snapshots or host.live is None:
        return None
    # Here and not above: the server process looks at Opens too, and imports no simulator.
    from envserver.snapshots.choosing import capability_of
    from envserver.snapshots.desk import SnapshotDesk

    make_model: MakeEnv | None = None
    rules = alias.snapshots
    if rules.model:
        make_model = partial(_make_model, registry.get(rules.model))
    capability, reason = capability_of(rules.mode, host.live.make, make_model)
    log.info("snapshots of %s: %s", alias.alias, reason)
    if capability is None:
        return None
    return SnapshotDesk(host.live, capability, rules, host.spec, wish.incarnations)


def _make_model(alias: EnvAlias) -> AnyEnv:
    """The recipe each time: what is wrong with the model's module costs the snapshots then, and not the lane."""
    from envserver.recipe import Recipe

    return Recipe(alias, {}, capturable=True).make()


def opened_by(host: Host, wish: LaneWish, offered: Sequence[int], desk: SnapshotDesk | None = None) -> pb.Opened:
    """What of Opened the lane knows; identity, windows and limits are the relay's."""
    able = {
        pb.FRAME_STACK: host.spec.stack_leaf is not None,
        pb.SNAPSHOTS: desk is not None,
        pb.EXPORTS: desk is not None and desk.exports,
        pb.RENDERING: wish.render and bool(host.spec.render_mode),
        pb.SOFT_ENDS: host.soft_ends,
        pb.CHANGES: any(leaf.nbytes >= SMALLEST_ROW for leaf in host.spec.observation.leaves),
    }
    return pb.Opened(
        protocol=handshake.version(),
        features=handshake.common([feature for feature, can in able.items() if can], offered),
        host=host.kind,
        host_reason=host.reason,
        spec=host.spec.to_proto(),
        spec_hash=host.spec.hash(),
        autoreset=host.autoreset,
        snapshot_support=pb.SNAPSHOT_NONE if desk is None else desk.support,
        per_slot_seeds=host.per_slot_seeds,
        masked_reset=host.masked_reset,
    )


class BuildProgress:
    """Tells the client how many environments are built, ten times a second at most."""

    def __init__(self, lane: BlockingLaneSocket) -> None:
        self._lane = lane
        self._last = time.monotonic()

    def __call__(self, built: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < PROGRESS_EVERY_S:
            return
        self._last = now
        event = pb.Event(kind=pb.BUILDING, step=built, total=total)
        self._lane.send(pb.EVENT, 0, event.SerializeToString())
