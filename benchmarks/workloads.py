"""The named workloads: what runs, what it is compared with, and what it should reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.measuring import RunSettings

PEER_ENVS: Final = (2, 8, 32, 64)
SUBPROCESS_PEERS: Final = ("gym-async", "sb3-subproc", "ray")


@dataclass(frozen=True)
class Target:
    """`of` names a ratio ("inline", "env-only", "best of …") or a figure of the run ("rtt_p50_ms")."""

    of: str
    bound: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


BEST_SUBPROCESS: Final = "best subprocess peer"


@dataclass(frozen=True)
class Workload:
    """One line of `make bench`."""

    name: str
    settings: RunSettings
    ceilings: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    peer_envs: tuple[int, ...] = PEER_ENVS
    targets: tuple[Target, ...] = ()
    repeats: int | None = None  # None: as the command line says


_ROLES = ("client", "server", "nursery", "lanes")

WORKLOADS: Final = (
    Workload(
        "cartpole-mlp",
        RunSettings(env="CartPole-v1", lanes=2, slots=256, policy="mlp", core=0, alone=True),
        ceilings=("inline", "inline-placed", "env-only", "grpc-echo"),
        peers=("gym-async", "sb3-subproc", "envpool", "ray"),
        targets=(Target("inline", 0.7), Target(BEST_SUBPROCESS, 20.0)),
    ),
    Workload(
        "cartpole-8x1",
        RunSettings(env="CartPole-v1", lanes=8, slots=1, policy="random", host="slots", core=0),
        ceilings=("inline", "grpc-echo"),
        peers=("ray",),
        peer_envs=(8,),
        targets=(Target("ray", 3.0),),
    ),
    Workload(
        "pong-random",
        RunSettings(env="ALE/Pong-v5", lanes=3, slots=128, policy="random", seconds=10.0),
        ceilings=("env-only", "inline"),
        peers=("gym-async", "sb3-subproc", "envpool"),
        peer_envs=(8, 32),
        targets=(Target("env-only", 0.9), Target("bytes_per_step", 7500.0, at_least=False)),
    ),
    Workload(
        "soak",
        RunSettings(env="CartPole-v1", lanes=2, slots=256, policy="mlp", seconds=60.0, warmup_s=5.0),
        targets=(
            *(Target(f"rss_mib_per_million_steps {role}", 1.0, at_least=False) for role in _ROLES),
            Target("loop_lag_p99_ms", 5.0, at_least=False),
            Target("processes_left", 0.0, at_least=False),
            Target("descriptors_left", 0.0, at_least=False),
        ),
        repeats=1,
    ),
)


def named(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)
