"""TorchRL's prioritised replay: segment trees in C++, storage in tensors that are made once.

Without `variant` every transition has its observation and the next one, as its tutorials have it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.replay_peers.drawing import FILL, DrawSettings, new_priorities, observations, report


def make(settings: DrawSettings) -> Callable[[int], object]:
    import torch

    data: Any = import_module("torchrl.data")
    tensordict: Any = import_module("tensordict")
    torch.set_num_threads(settings.threads)
    storage = data.LazyTensorStorage(settings.transitions)
    if settings.prioritised:
        sampler = data.PrioritizedSampler(settings.transitions, alpha=0.6, beta=0.4)
    else:
        sampler = data.RandomSampler()
    replay = data.TensorDictReplayBuffer(
        storage=storage, sampler=sampler, batch_size=settings.batch, priority_key="td_error"
    )
    obs = torch.from_numpy(observations(settings, FILL))
    zeros = torch.zeros(FILL)
    for start in range(0, settings.transitions, FILL):
        fields = {"obs": obs, "next_obs": obs.roll(start), "action": zeros.long(), "reward": zeros, "discount": zeros}
        replay.extend(tensordict.TensorDict(fields, batch_size=[FILL]))
    priorities = torch.from_numpy(new_priorities(settings))

    def one(i: int) -> None:
        batch = replay.sample()
        if settings.prioritised:
            replay.update_priority(batch["index"], priorities[i % 64])

    return one


if __name__ == "__main__":
    report(make)
