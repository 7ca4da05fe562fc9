"""The named training workloads: what trains, what it is compared with, and what it should reach."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.train_peers.counting import TrainSettings
from benchmarks.workloads import Target

CLEANRL_COMMIT: Final = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
SUBJECT: Final = "asyncrl"


@dataclass(frozen=True)
class Subject:
    """One way of ours: `asyncrl train ALGORITHM` with these options."""

    name: str
    options: tuple[str, ...]
    algorithm: str = "ppo"
    whole: bool = False  # to the run's end and its evaluation, instead of a window


@dataclass(frozen=True)
class Peer:
    """Another trainer. Each of `choices`, a variant and a number of torch's threads, is tried; the best one counts."""

    module: str
    needs: tuple[str, ...]  # distributions, or distribution==start of its version
    choices: tuple[tuple[str, int], ...]
    get: str  # how to have it
    checkout: str = ""  # a folder that must be in ASYNCRL_PEER_CACHE


@dataclass(frozen=True)
class TrainWorkload:
    """`peers` train with `settings`, `subjects` with options that say the same."""

    name: str
    settings: TrainSettings
    subjects: tuple[Subject, ...]
    peers: tuple[str, ...]
    targets: tuple[Target, ...] = ()


THREADS: Final = (1, 2)
_PIP: Final = "pip install torch==2.13.0"


def _sb3(module: str) -> Peer:
    return Peer(
        module,
        ("stable-baselines3", "torch", "ale-py"),
        tuple((where, threads) for where in ("dummy", "subproc") for threads in THREADS),
        f"{_PIP} stable-baselines3 ale-py opencv-python-headless",
    )


PEERS: Final = {
    "cleanrl": Peer(
        "benchmarks.train_peers.cleanrl_ppo",
        ("gymnasium==0.29.", "numpy==1.", "torch", "tyro", "tensorboard"),
        tuple(("", threads) for threads in THREADS),
        f"{_PIP} gymnasium==0.29.1 'numpy<2' ale-py==0.10.2 'opencv-python-headless<5' tyro tensorboard, "
        f"and vwxyzjn/cleanrl at {CLEANRL_COMMIT[:7]} as $ASYNCRL_PEER_CACHE/cleanrl",
        checkout="cleanrl",
    ),
    "sb3": _sb3("benchmarks.train_peers.sb3_ppo"),
    "sb3-dqn": _sb3("benchmarks.train_peers.sb3_dqn"),
    "sample-factory": Peer(
        "benchmarks.train_peers.sample_factory_appo",
        ("sample-factory", "torch"),
        tuple((variant, 1) for variant in ("example", "wide", "batched", "serial")),
        f"{_PIP} sample-factory",
    ),
    "sample-factory-native": Peer(
        "benchmarks.train_peers.sample_factory_appo",
        ("sample-factory", "torch"),
        tuple((variant, 1) for variant in ("native-64", "native-256", "native-serial-64", "native-serial-256")),
        f"{_PIP} sample-factory",
    ),
    "rllib": Peer(
        "benchmarks.train_peers.rllib_impala",
        ("ray", "torch", "gymnasium"),
        tuple((variant, 1) for variant in ("example", "wide", "wide-learner", "native", "native-learner")),
        f"{_PIP} 'ray[rllib]'",
    ),
}


def checkout_of(peer: Peer) -> Path | None:
    """Where its checkout should be; None where it needs none."""
    return Path(os.environ.get("ASYNCRL_PEER_CACHE", "")) / peer.checkout if peer.checkout else None


# Nothing but training: the peers evaluate nothing and keep nothing, and write TensorBoard files as we do.
_BARE: Final = ("--eval-every=0", "--checkpoint-every=0", "--total-timesteps=10000000")
_CLASSIC: Final = ("--preset=classic", *_BARE)
_PONG: Final = ("--preset=atari", '--env-kwargs={"repeat_action_probability": 0.0}', *_BARE)

# As the peer: a replay of 100,000, gradient steps from 2,000 steps on, greedy but for one action in a hundred.
_PONG_DQN: Final = (
    "--preset=atari",
    *_BARE,
    "--buffer-size=100000",
    "--learning-starts=2000",
    "--exploration-fraction=0.001",
    "--num-steps=4",
)

CARTPOLE: Final = TrainSettings("CartPole-v1", 4, 128, epochs=4, minibatches=4, warmup_s=4.0, seconds=12.0)
SLOW: Final = TrainSettings(
    "benchmarks.slow_env:SlowCartPole-v1", 4, 128, epochs=4, minibatches=4, warmup_s=4.0, seconds=12.0
)
PONG: Final = TrainSettings("ALE/Pong-v5", 8, 128, epochs=4, minibatches=4, warmup_s=5.0, seconds=20.0)
PONG_DQN: Final = TrainSettings("ALE/Pong-v5", 8, 4, epochs=1, minibatches=1, warmup_s=10.0, seconds=20.0)


def _pong_dqn(every: int, ratio: float) -> TrainWorkload:
    """One gradient step for so many environment steps."""
    steps = PONG_DQN.num_envs * PONG_DQN.num_steps // every
    options = (*_PONG_DQN, f"--gradient-steps={steps}")
    return TrainWorkload(
        f"pong-dqn-{every}",
        replace(PONG_DQN, gradient_steps=steps),
        tuple(
            Subject(SUBJECT + name, (*options, *further), "dqn")
            for name, further in (
                ("", ()),
                ("-async", ("--mode=async",)),
                ("-bf16", ("--bf16",)),
                ("-bf16-async", ("--bf16", "--mode=async")),
            )
        ),
        peers=("sb3-dqn",),
        targets=tuple(Target(f"asyncrl{name} / sb3-dqn", ratio) for name in ("", "-async", "-bf16")),
    )


WORKLOADS: Final = (
    TrainWorkload(
        "cartpole-4x128",
        CARTPOLE,
        (Subject(SUBJECT, (*_CLASSIC, "--lanes=1")),),
        peers=("cleanrl",),
        targets=(Target("asyncrl / cleanrl", 0.6),),
    ),
    TrainWorkload(
        "cartpole-4x128-slow",
        SLOW,
        (Subject(SUBJECT, (*_CLASSIC, "--lanes=4", f"--env-id=SlowCartPole={SLOW.env}")),),
        peers=("cleanrl",),
        targets=(Target("asyncrl / cleanrl", 1.3),),
    ),
    TrainWorkload(
        "cartpole-fast",
        CARTPOLE,
        (Subject(SUBJECT, ("--preset=fast",), whole=True),),
        peers=("sample-factory", "sample-factory-native"),
        targets=(Target("asyncrl / sample-factory", 4.0), Target("asyncrl eval_return_mean", 475.0)),
    ),
    TrainWorkload(
        "impala-cartpole",
        CARTPOLE,
        (
            Subject(SUBJECT, ("--preset=fast",), "impala", whole=True),
            Subject(f"{SUBJECT}-appo", ("--preset=fast",), "appo", whole=True),
        ),
        peers=("rllib", "sample-factory", "sample-factory-native"),
        targets=(
            Target("asyncrl / rllib", 10.0),
            Target("asyncrl / sample-factory", 4.0),
            Target("asyncrl-appo / sample-factory", 4.0),
            Target("asyncrl eval_return_mean", 450.0),
            Target("asyncrl-appo eval_return_mean", 450.0),
            Target("asyncrl wall_s", 60.0, at_least=False),
            Target("asyncrl-appo wall_s", 60.0, at_least=False),
        ),
    ),
    TrainWorkload(
        "pong-8x128",
        PONG,
        (Subject(SUBJECT, _PONG), Subject(f"{SUBJECT}-bf16", (*_PONG, "--bf16"))),
        peers=("sb3", "cleanrl"),
        targets=(
            Target("asyncrl / sb3", 1.6),
            Target("asyncrl / cleanrl", 1.6),
            Target("asyncrl-bf16 / sb3", 2.5),
            Target("asyncrl-bf16 / cleanrl", 2.5),
        ),
    ),
    _pong_dqn(32, 1.5),
    _pong_dqn(4, 1.1),
)
