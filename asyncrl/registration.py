"""Remote environments under `gymnasium.make_vec`.

    gymnasium.make_vec("asyncrl/Remote-v0", num_envs=64, env_id="CartPole-v1", servers="worker1:50051")

Importing `asyncrl` registers them. Only vector environments exist there: `gymnasium.make` has none to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncrl.vector import RemoteVectorEnv

ENV_ID: Final = "asyncrl/Remote-v0"


def register_envs() -> None:
    """Make ENV_ID known to Gymnasium. Idempotent."""
    import gymnasium

    if ENV_ID not in gymnasium.registry:
        gymnasium.register(ENV_ID, vector_entry_point="asyncrl.registration:make_remote")


def make_remote(env_id: str, num_envs: int = 1, **kwargs: Any) -> RemoteVectorEnv:
    """The vector entry point; `kwargs` are those of `RemoteVectorEnv`."""
    from asyncrl.vector import RemoteVectorEnv

    return RemoteVectorEnv(env_id, num_envs, **kwargs)
