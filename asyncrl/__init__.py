"""asyncrl: simulators on other machines, driven from one asyncio loop over gRPC streams.

Importing this package pulls in neither torch nor grpc nor Gymnasium; public names load on first use. As with every
package of environments, importing it is what makes `gymnasium.make_vec("asyncrl/Remote-v0", ...)` work.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from asyncrl.registration import register_when_imported
from asyncrl.wire.release import VERSION

__version__ = VERSION

# Public name -> the module that defines it. tests/unit/test_public_names.py keeps both lists equal.
_HOMES = {
    "AsyncRLError": "asyncrl.errors",
    "EmbeddedServer": "asyncrl.client.embedded",
    "Fleet": "asyncrl.client.fleet",
    "RemoteVectorEnv": "asyncrl.vector",
    "connect": "asyncrl.client.connecting",
}

__all__ = ["AsyncRLError", "EmbeddedServer", "Fleet", "RemoteVectorEnv", "connect"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


register_when_imported()
# gRPC writes a line across the dashboard for every idle connection that ends. It reads this at its first use.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
