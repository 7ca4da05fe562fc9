"""What Describe says of an alias: its spec, which a lane process has to be built for.

Invariant: however many ask at once, at most PROBES lane processes are built for them, and of one alias with the same
kwargs one (test_many_who_ask_at_once_cost_one_process).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final, TypeAlias

from asyncrl.errors import AsyncRLError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import from_json
from envserver.preparing import Start, probe

# They are beside the capacity: no slot is taken for them.
PROBES: Final = 2
MAX_REMEMBERED: Final = 64

_Key: TypeAlias = tuple[str, str]
_Outcome: TypeAlias = "pb.Opened | AsyncRLError | None"


class Specs:
    """By alias and kwargs, each found out once."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._found: dict[_Key, pb.Opened] = {}
        # None as its outcome: who was finding out has left.
        self._asked: dict[_Key, asyncio.Future[_Outcome]] = {}
        self._turn = asyncio.Semaphore(PROBES)

    async def of(self, env: str, kwargs_json: bytes) -> pb.Opened:
        """What a lane says of itself. Raises ServerRefused, LaneLost or DeadlineExceeded, to everybody who waits for
        the same. Cancellation leaves no process, and those who waited with it find out by themselves."""
        kwargs: dict[str, Any] = from_json(kwargs_json, "env kwargs")
        key = env, json.dumps(kwargs, sort_keys=True)  # however its client wrote it
        while key not in self._found:
            asked = self._asked.get(key)
            if asked is None:
                return await self._find(key, kwargs_json)
            # Shielded: it is not of those who wait to end it.
            outcome = await asyncio.shield(asked)
            if isinstance(outcome, AsyncRLError):
                raise outcome
        return self._found[key]

    async def _find(self, key: _Key, kwargs_json: bytes) -> pb.Opened:
        asked: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._asked[key] = asked
        outcome: _Outcome = None
        try:
            async with self._turn:
                outcome = found = await probe(self._start, key[0], kwargs_json)
        except AsyncRLError as error:
            outcome = error
            raise
        finally:
            del self._asked[key]
            asked.set_result(outcome)
        if len(self._found) >= MAX_REMEMBERED:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        return found
