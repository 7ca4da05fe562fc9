"""Where the environments of a run are: env servers that were named, or one of its own for as long as the run lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from asyncrl.client.connecting import addresses, connect
from asyncrl.client.credentials import Access
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetEvent
from asyncrl.client.one_core import OneCore
from asyncrl.client.scheduling import Scheduling
from asyncrl.config import RunConfig
from asyncrl.config.search import SearchSettings
from asyncrl.learner.machine import cores_here
from asyncrl.run.learning import Learning

# Environments for each core up to which a forward of them all costs little more than a forward of one. Lanes that take
# turns with the policy then gain nothing, and each costs forwards, and a way through relay and client, of its own.
FEW: Final = 8
MOST_THREADS: Final = 64  # that an env server takes


@dataclass(frozen=True)
class Serving:
    """Env servers and how to reach them."""

    addresses: Sequence[str]
    env: str
    kwargs: dict[str, Any]
    access: Access | None
    embedded: bool
    takes_turns: bool = False  # collection and learning, as in sync mode
    lane_threads: int = 0  # of an env server of our own, where one lane has all environments; 0: several lanes
    core: OneCore | None = None  # that an env server of our own stays on

    def own_lanes(self, num_envs: int) -> int | None:
        """How many lanes an env server of our own is best asked for; None: as the servers say.

        Its cores are those of the policy and the learner as well: more lanes than cores only take turns.
        """
        if not self.embedded:
            return None
        return 1 if self.lane_threads else min(num_envs, cores_here())

    def fleet(
        self, on_event: Callable[[FleetEvent], None] | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[Fleet]:
        """`settings` are those of FleetConfig but env and kwargs."""
        return connect(
            list(self.addresses),
            access=self.access,
            on_event=on_event,
            # Where a learner computes beside the loop, waking up should preempt it.
            scheduling=Scheduling(batch=self.takes_turns),
            env=self.env,
            kwargs=self.kwargs,
            **settings,
        )

    def one_core(self, learning: Learning) -> AbstractContextManager[None]:
        """The run's threads are where its server is, if they take turns with it."""
        return self.core.shared() if self.core is not None and learning.takes_turns_with_a_lane else nullcontext()


@asynccontextmanager
async def serving(
    config: RunConfig,
    servers: str | Sequence[str] | None,
    access: Access | None,
    num_envs: int,
    core: OneCore | None = None,
) -> AsyncIterator[Serving]:
    """Servers for `num_envs` environments, training and evaluation together; one of our own stays on `core`.

    Raises ConnectionFailed, naming the stage, where the embedded server does not start.
    """
    takes_turns = config.max_ahead == 0
    if servers is not None:
        yield Serving(addresses(servers), config.env_id, config.kwargs, access, False, takes_turns)
        return
    threads = lane_threads(config)
    kwargs = ({"$threads": threads} if threads else {}) | config.kwargs
    options = {} if core is None else {"core": core.core}
    async with EmbeddedServer(config.env_id, num_envs, kwargs=kwargs, options=options) as server:
        # It has the kwargs; the fleets need not ask for them.
        yield Serving([server.address], config.env_id.partition("=")[0], {}, None, True, takes_turns, threads, core)


def core_for_turns(config: RunConfig) -> OneCore | None:
    """The core for a run that does one thing at a time: its lane steps, the policy acts, the learner learns."""
    searching = isinstance(config, SearchSettings) and config.search != "off"
    one_lane = config.lanes == 1 or config.num_envs == 1
    takes_turns = config.max_ahead == 0 and one_lane and not searching and not lane_threads(config)
    return OneCore.here() if takes_turns else None


def lane_threads(config: RunConfig) -> int:
    """With how many threads one lane of an env server of our own serves a few games of a native host; 0: no such host.

    In sync mode they have all cores, in the others those that the learner leaves.
    """
    preprocessed = config.env_id.rpartition("=")[2].startswith("ALE/") and config.kwargs.get("preprocess", True)
    plain = config.kwargs.get("mode") is None and config.kwargs.get("difficulty") is None  # else slots, on one core
    searching = isinstance(config, SearchSettings) and config.search != "off"  # that wants slots
    few = config.num_envs <= FEW * cores_here()
    native = preprocessed and plain and config.host != "slots" and not searching and config.lanes is None
    if not (native and few):
        return 0
    cores = cores_here() if config.max_ahead == 0 else max(1, cores_here() // 3)
    return min(cores, config.num_envs, MOST_THREADS)
