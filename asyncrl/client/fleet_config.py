"""What a fleet is asked for (`FleetConfig`), what it tells (`FleetEvent`), and what it counts (`FleetStats`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from asyncrl.client.lane_context import LaneContext
from asyncrl.client.loop_lag import LoopLag
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConfigError
from asyncrl.wire._generated import env_pb2 as pb

Autoreset = Literal["same_step", "next_step", "disabled"]
HostChoice = Literal["auto", "native", "slots"]

AUTORESETS: Final[dict[str, pb.Autoreset.ValueType]] = {
    "same_step": pb.SAME_STEP,
    "next_step": pb.NEXT_STEP,
    "disabled": pb.DISABLED,
}
HOSTS: Final[dict[str, pb.Host.ValueType]] = {"auto": pb.HOST_UNSPECIFIED, "native": pb.NATIVE, "slots": pb.SLOTS}


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """`num_envs` environments of the alias `env`, over all servers."""

    env: str
    num_envs: int = 1
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None  # slot i starts with seed + i; None: unseeded
    run_id: str | None = None  # None: a random one
    learner_epoch: int = 0
    member: str = ""
    autoreset: Autoreset = "same_step"
    host: HostChoice = "auto"
    per_slot_seeds: bool = False
    masked_reset: bool = False
    render: bool = False
    snapshots: bool = False  # lanes hold states of their slots, where the environment allows it
    # Lanes without slots, which only look ahead: `num_envs` of them, with one environment each.
    simulation: bool = False
    resumable: bool = False
    lanes: int | None = None
    # False: the caller sends the first RESET of each lane. A lane that replaces a lost one is always reset.
    auto_reset: bool = True
    incarnations: Sequence[int] | None = None  # per fleet slot, of an earlier part of the run; None: zeros
    allow_partial: bool = False  # start with the servers that answer, as long as they have room for all
    # With no lane up for so long, `recv` raises the last reason instead of waiting for ever.
    give_up_s: float = 120.0
    timers: LaneTimers = field(default_factory=LaneTimers)

    def __post_init__(self) -> None:
        if self.autoreset not in AUTORESETS:
            raise ConfigError(f"autoreset {self.autoreset!r}: choose one of {', '.join(AUTORESETS)}")
        if self.host not in HOSTS:
            raise ConfigError(f"host {self.host!r}: choose one of {', '.join(HOSTS)}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}: 0 to 2**63 - 1")
        if self.incarnations is not None and len(self.incarnations) != self.num_envs:
            raise ConfigError(f"{len(self.incarnations)} incarnations for {self.num_envs} environments")


@dataclass(frozen=True)
class FleetEvent:
    """One fault, or the end of one. `kind` is lane_lost, stream_resumed, slot_rebuilt, request_refused (faults);
    lane_opened, building, server_log, draining (news)."""

    kind: str
    lane: int
    address: str
    cause: str = ""
    text: str = ""
    row: int | None = None
    step: int = 0  # building: environments there are
    total: int = 0  # of so many


FAULTS: Final = frozenset({"lane_lost", "stream_resumed", "slot_rebuilt", "slot_quarantined", "request_refused"})


@dataclass
class FleetStats:
    """Counters since the fleet was made; all on the loop's thread."""

    context: LaneContext
    faults: Counter[str] = field(default_factory=Counter)  # by kind: lane_lost, stream_resumed, ...
    causes: Counter[str] = field(default_factory=Counter)  # of lost lanes, rebuilt slots and resumed streams
    reopened: int = 0  # lanes
    arrivals: int = 0  # replies with rows
    lost_in_flight: int = 0  # requests without a reply when their lane was lost
    dropped_actions: int = 0  # given to a lane that was not up

    @property
    def frames_in(self) -> int:
        return self.context.counters.frames_in

    @property
    def frames_out(self) -> int:
        return self.context.counters.frames_out

    @property
    def bytes_in(self) -> int:
        return self.context.counters.bytes_in

    @property
    def bytes_out(self) -> int:
        return self.context.counters.bytes_out

    @property
    def duplicates(self) -> int:
        """Replies that came again after a resume, and were dropped."""
        return self.context.duplicates

    @property
    def loop_lag(self) -> LoopLag:
        """How late the loop's timers of the lanes ran."""
        return self.context.loop_lag
