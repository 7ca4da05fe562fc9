"""The training side: lanes, fleets, and the only importers of gRPC there."""

from __future__ import annotations

import os

# gRPC's fork handlers crash the child of a busy parent now and then, and complain at every subprocess. Nothing of ours
# talks to gRPC in a forked child. It counts when gRPC is first imported, which in this process happens below.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
