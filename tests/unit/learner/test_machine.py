"""Choices that depend on the machine, on machines that are made up."""

from __future__ import annotations

import threading

import pytest
import torch
from gymnasium import spaces

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.machine import (
    check_bf16,
    choose_device,
    choose_threads,
    flops_per_row,
    has_bf16,
    threads_for,
    use_threads,
)
from asyncrl.learner.model import build_model
from asyncrl.learner.model_config import ModelConfig
from tests.unit.learner.spaces_served import FRAMES, VECTOR, served

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "cores", "flops", "rows", "overlapping", "expected"),
    [
        ("cpu", 8, 2e4, 512, True, (1, 1)),
        ("cpu", 8, 2e7, 8, False, (8, 1)),
        ("cpu", 8, 2e7, 128, False, (8, 2)),
        ("cpu", 8, 2e7, 1024, False, (8, 8)),
        ("cpu", 8, 2e7, 1024, True, (6, 2)),
        ("cpu", 8, 2e7, 8, True, (6, 1)),
        ("cpu", 2, 2e7, 1024, True, (1, 1)),
        ("cpu", 1, 2e7, 1024, False, (1, 1)),
        ("cuda", 64, 2e7, 1024, True, (1, 1)),
    ],
)
def test_thread_counts_fit_the_machine(
    device: str, cores: int, flops: float, rows: int, overlapping: bool, expected: tuple[int, int]
) -> None:
    """Small networks get one thread, large ones share the cores; a forward of a few rows is not shared out."""
    found = choose_threads(torch.device(device), cores, flops, rows, overlapping=overlapping)
    assert found[:2] == expected
    assert found.why
    assert overlapping is False or found.learner + found.acting <= max(cores, 2)


def test_work_is_counted_per_row() -> None:
    """A row of a dense network is two operations per weight; convolutions are far more work."""
    dense, frames = (served(space, spaces.Discrete(2)) for space in (VECTOR, FRAMES))
    model = build_model(dense, ModelConfig(), seed=1)
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert flops_per_row(model, dense) == 2 * weights
    convolutions = 20 * 20 * 32 * 256 + 9 * 9 * 64 * 512 + 7 * 7 * 64 * 576
    counted = flops_per_row(build_model(frames, ModelConfig(), seed=1), frames)
    assert counted == 2 * (convolutions + 3136 * 512 + 512 * 3)


def test_what_is_asked_for_is_what_is_taken() -> None:
    """Counts of the configuration stand; what it leaves open follows from network, mode and cores."""
    spec = served(FRAMES, spaces.Discrete(2))
    model = build_model(spec, ModelConfig(), seed=1)
    assert threads_for(model, spec, PPOConfig(num_envs=512), cores=8)[:2] == (8, 8)
    assert threads_for(model, spec, PPOConfig(num_envs=512, mode="async"), cores=8)[:2] == (6, 2)
    assert threads_for(model, spec, PPOConfig(num_envs=8), cores=8)[:2] == (8, 1)
    asked = threads_for(model, spec, PPOConfig(act_threads=3), cores=8)
    assert asked == (8, 3, "8 for learning, 3 for acting, as asked")
    assert threads_for(model, spec, PPOConfig(learner_threads=5, act_threads=1), cores=8)[:2] == (5, 1)
    assert threads_for(model, spec, PPOConfig()).learner >= 1


def test_thread_counts_belong_to_a_thread() -> None:
    """What one thread sets for itself does not reach another that has set its own."""
    before = torch.get_num_threads()
    use_threads(2)
    seen: list[int] = []

    def other() -> None:
        use_threads(1)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    use_threads(0)
    assert [*seen, torch.get_num_threads()] == [1, 2]
    use_threads(before)


def test_a_device_that_is_not_there_is_refused() -> None:
    """`auto` always finds one; what is misspelt or absent is a configuration error."""
    assert choose_device("auto").type in ("cpu", "cuda")
    assert choose_device("cpu") == CPU
    for wish in ("gpu", "cuda:77"):
        with pytest.raises(ConfigError, match="pass auto or cpu"):
            choose_device(wish)


def test_bf16_is_refused_where_it_would_be_imitated() -> None:
    """Only hardware that computes in it is used for it."""
    assert not has_bf16(torch.device("meta"))
    with pytest.raises(ConfigError, match="leave it out"):
        check_bf16(torch.device("meta"))


@pytest.mark.parametrize("computes", [True, False])
def test_a_gpu_is_asked_for_what_it_computes_in(computes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for what it imitates."""
    seen: list[bool] = []

    def supported(*, including_emulation: bool) -> bool:
        seen.append(including_emulation)
        return computes

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert has_bf16(torch.device("cuda")) is computes
    assert seen == [False]
