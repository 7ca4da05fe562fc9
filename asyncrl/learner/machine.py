"""What the machine offers a model: device, bfloat16, and how many threads each side computes with, and why.

Threads of torch are chosen per thread of the program (test_thread_counts_belong_to_a_thread). A small network is slower
with two threads than with one: handing out the work costs more than the work.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from asyncrl.config import RunConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.model import Model
from asyncrl.wire.spec import LaneSpec

SMALL_FLOPS: Final = 1e6  # of one row's forward; a dense network of two layers of 256 stays below
# Of a forward, for each thread that shares it. Between two short ones the helpers fall asleep, and while they do not
# they are in the way of lanes and learner: Nature's network acts for 8 rows in 1.1 ms alone, in 0.9 with two.
SHARED_FLOPS: Final = 1e9


class Threads(NamedTuple):
    """Threads that torch computes with on either side; `why` is for the run to print."""

    learner: int
    acting: int
    why: str


def choose_device(wish: str) -> torch.device:
    """`auto`: CUDA where there is one. ConfigError if the device is not there."""
    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wish)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {wish!r} cannot be used: {str(error).splitlines()[0]}; pass auto or cpu") from error
    return device


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; software that imitates it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def check_bf16(device: torch.device) -> None:
    if not has_bf16(device):
        raise ConfigError(f"bf16 is asked for, and this {device.type} does not compute in it: leave it out")


def flops_per_row(model: Model, spec: LaneSpec) -> float:
    """Of the forward of one row of what a lane serves."""
    device = model.device
    obs = [torch.from_numpy(np.zeros((1, *leaf.shape), leaf.dtype)).to(device) for leaf in spec.observation.leaves]
    first = torch.zeros(1, dtype=torch.bool, device=device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.step(obs, first, model.initial_carry(1))
    return float(counter.get_total_flops())


def threads_for(model: Model, spec: LaneSpec, config: RunConfig, cores: int = 0) -> Threads:
    """What the run asks for, and our choice where it leaves that open; `cores` 0: those that this process may use."""
    available = cores or cores_here()
    device = model.device
    flops = flops_per_row(model, spec)
    ours = choose_threads(device, available, flops, config.num_envs, overlapping=config.mode != "sync")
    asked = (config.learner_threads or ours.learner, config.act_threads or ours.acting)
    return ours if asked == ours[:2] else Threads(*asked, f"{asked[0]} for learning, {asked[1]} for acting, as asked")


def cores_here() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(device: torch.device, cores: int, flops: float, rows: int, *, overlapping: bool) -> Threads:
    """`cores`: that are ours; `flops`: of one row; `rows`: of a forward; `overlapping`: acting goes on while learning
    does."""
    if device.type != "cpu":
        return Threads(1, 1, f"1 thread each: the network is computed on {device}")
    size = f"{flops / 1e6:.3g} MFLOP a row"
    if cores == 1:
        return Threads(1, 1, "1 thread each: there is one core")
    if flops < SMALL_FLOPS:
        return Threads(1, 1, f"1 thread each: a network of {size} is too small to share out")
    shared = max(1, int(flops * rows / SHARED_FLOPS))
    if not overlapping:
        acting = min(cores, shared)
        return Threads(cores, acting, f"{cores} for learning, {acting} for acting: {size}, {rows} rows, one at a time")
    learner = cores - max(1, cores // 3)  # learning is forward and backward over every row, several times
    acting = min(cores - learner, shared)
    return Threads(learner, acting, f"{learner} for learning beside {acting} for acting: {size}, both at once")


def use_threads(count: int) -> None:
    """Torch computes with `count` threads for whoever calls; 0 changes nothing."""
    if count:
        torch.get_num_threads()  # the first question of a thread sets it to the latest count of any thread
        torch.set_num_threads(count)
