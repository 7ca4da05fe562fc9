"""Remote environments under `gymnasium.make_vec`.

    import asyncrl
    gymnasium.make_vec("asyncrl/Remote-v0", num_envs=64, env_id="CartPole-v1", servers="worker1:50051")

Importing `asyncrl` registers them, as with every package of environments; but it does not import Gymnasium for that: if
Gymnasium comes later, they are registered when it has come (test_either_order_of_imports_registers). Only vector
environments exist there: `gymnasium.make` has none to make.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncrl.vector import RemoteVectorEnv

ENV_ID: Final = "asyncrl/Remote-v0"


def register_envs() -> None:
    """Make ENV_ID known to Gymnasium. Idempotent."""
    import gymnasium

    if ENV_ID not in gymnasium.registry:
        gymnasium.register(ENV_ID, vector_entry_point="asyncrl.registration:make_remote")


def register_when_imported() -> None:
    """`register_envs` now if Gymnasium is there, or else as soon as somebody imports it."""
    if sys.modules.get("gymnasium") is not None:
        register_envs()
    elif not any(isinstance(finder, _AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterGymnasium())


class _AfterGymnasium:
    """Waits for the import of Gymnasium, registers behind it, and is gone.

    A finder without the base class of finders, whose module takes longer to import than all of this package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            register_envs()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def make_remote(env_id: str, num_envs: int = 1, **kwargs: Any) -> RemoteVectorEnv:
    """The vector entry point; `kwargs` are those of `RemoteVectorEnv`."""
    from asyncrl.vector import RemoteVectorEnv

    return RemoteVectorEnv(env_id, num_envs, **kwargs)
