"""What an env server was told to do: `ServerConfig`, and `Quotas` with the bounds that keep its peers from using it up.

Plain data: importing this module pulls in neither numpy nor gymnasium nor grpc, because every process of the
server reads it (test_importing_the_config_pulls_in_nothing_heavy). A config that exists is consistent:
what cannot be is refused when it is made (test_impossible_settings_are_refused).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Literal, get_args

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from envserver.registry import Registry

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
# gRPC's options are C's ints, and so are the milliseconds that travel.
MAX_INT: Final = 2**31 - 1
MAX_S: Final = MAX_INT // 1000

LauncherName = Literal["auto", "nursery", "exec"]


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Bounds per client, lane, message or second. Every one is a positive number; none can be switched off, and only
    those of a lane's memory may be larger than MAX_INT."""

    lanes_per_client: int = 64
    max_in_flight: int = 4  # requests of a lane; the wire allows up to 16
    receive_bytes: int = 16 * MIB  # one gRPC message
    metadata_bytes: int = 8 * KIB
    spare_streams: int = 16  # beyond the capacity, for control RPCs and for streams that are being replaced
    concurrent_rpcs: int = 256
    handshake_s: float = 5.0
    idle_connection_s: float = 60.0
    lease_s: float = 10.0  # silence of a client for which its stream lives
    resume_window_s: float = 30.0  # a broken stream's lane waits this long
    lane_memory_bytes: int = 2 * GIB
    snapshot_bytes: int = 512 * MIB  # of a lane
    snapshots: int = 65_536  # of a lane
    auth_logs_per_s: float = 1.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise ConfigError(f"quota {each.name} is {value}; it has to be above 0")
            most = MAX_S if each.name.endswith("_s") else MAX_INT
            if value > most and each.name not in ("lane_memory_bytes", "snapshot_bytes"):
                raise ConfigError(f"quota {each.name} is {value}; it can be {most} at most")
        if not 2 <= self.max_in_flight <= 16:
            raise ConfigError(f"quota max_in_flight is {self.max_in_flight}; 2 to 16 are possible")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One env server. `num_envs` is its capacity in slots; clients decide how they split it into lanes."""

    registry: Registry
    num_envs: int
    lanes: int = 0  # advice to clients; 0 = `advised_lanes` chooses from the cores
    warm: bool = False  # build environments before the first client asks
    listen: tuple[str, ...] = ("127.0.0.1:50051",)
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None  # set: clients need a certificate that this CA signed
    embedded: bool = False  # a child of the program that uses it: it ends when its standard input closes
    launcher: LauncherName = "auto"
    drain_s: float = 10.0
    quotas: Quotas = field(default_factory=Quotas)

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ConfigError(f"--num-envs {self.num_envs}: a server needs at least one environment")
        if self.max_streams > MAX_INT:
            raise ConfigError(f"--num-envs {self.num_envs}: with the quota spare_streams {MAX_INT} at most")
        if not 0 <= self.lanes <= self.num_envs:
            raise ConfigError(f"--lanes {self.lanes}: choose 1 to {self.num_envs} (--num-envs), or 0 for the default")
        if not self.listen:
            raise ConfigError("no address to listen on: pass --listen 127.0.0.1:50051, or unix:PATH")
        if not 0 <= self.drain_s <= MAX_S:
            raise ConfigError(f"drain_s is {self.drain_s}; 0 to {MAX_S} seconds are possible")
        if self.launcher not in get_args(LauncherName):
            raise ConfigError(f"launcher {self.launcher!r}: choose one of {', '.join(get_args(LauncherName))}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together: pass both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError(
                "--tls-client-ca checks clients during a TLS handshake: pass --tls-cert and --tls-key too"
            )

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def advised_lanes(self) -> int:
        """Lanes to split the capacity over: three for a core, so that one computes while another one's rows travel."""
        return self.lanes or min(self.num_envs, 3 * usable_cores())

    @property
    def max_streams(self) -> int:
        """HTTP/2 streams that a connection may have: a lane for every slot, and some to spare."""
        return self.num_envs + self.quotas.spare_streams


def usable_cores() -> int:
    """Cores that this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
