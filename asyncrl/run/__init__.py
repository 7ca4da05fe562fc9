"""One training run: wiring, logging, evaluation, checkpoints, presets. Usable from Python:

    from asyncrl.config import PPOConfig
    from asyncrl.run import train

    result = train(PPOConfig(env_id="CartPole-v1", num_envs=16, total_timesteps=100_000))
    print(result.eval_return_mean)

Importing this imports no torch; asking for `train` does (test_train_is_imported_when_it_is_asked_for).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.run.result import Result
    from asyncrl.run.running import train

__all__ = ["Result", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module("asyncrl.run.result" if name == "Result" else "asyncrl.run.running")
    return getattr(module, name)
