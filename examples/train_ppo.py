"""Training from Python: what `asyncrl train ppo --preset start` does, and the result as an object.

python examples/train_ppo.py [worker1:50051,worker2:50051]
"""

from __future__ import annotations

import sys
from typing import Any

from asyncrl.run import Result, train
from asyncrl.run.options import resolve


def main(servers: str | None = None, **changed: Any) -> Result:
    """Trains on the servers, or on one of our own; `changed` are fields of PPOConfig."""
    config = resolve("ppo", preset_name="start", **changed)
    result = train(config, servers=servers, say=print)
    print(
        f"mean return {result.eval_return_mean} over {result.eval_episodes} episodes, in {config.run_dir}/{result.run}"
    )
    return result


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
