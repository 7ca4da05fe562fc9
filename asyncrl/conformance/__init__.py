"""Checks for env servers in any language: what env.proto demands, tried on a running server.

From the command line: `asyncrl check-server HOST:PORT --env ALIAS`. From a test of your own:

    for result in await run_checks(connector, "my-env"):
        assert result.status != "failed", result.reason

Invariant: every check is red for a server with the fault that it is named after, and for no correct one
(test_each_fault_is_caught, test_a_correct_server_passes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from asyncrl.client.seams import Connector
from asyncrl.conformance import acting, framing, keeping, looking, opening, ordering, resuming, stacking, stepping

# Importing a module of checks registers them, in the order in which they are run.
from asyncrl.conformance.bench import Bench
from asyncrl.conformance.registry import CHECKS, Check, Result, check
from asyncrl.conformance.verdicts import Failed, Skipped
from asyncrl.errors import AsyncRLError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, parse_body

__all__ = ["CHECKS", "Bench", "Check", "Failed", "Result", "Skipped", "check", "refusal_of", "run_check", "run_checks"]

CHECK_S: Final = 120.0
# Modules of checks, which importing them has registered, in the order in which they are run.
_ORDER: Final = [
    each.__name__ for each in (opening, stepping, acting, ordering, framing, resuming, keeping, looking, stacking)
]


async def run_checks(
    connector: Connector,
    env: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    only: Collection[str] | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """All checks, or those named in `only`, one after the other. Cancellation closes what the running one has open."""
    results = []
    for each in sorted(CHECKS.values(), key=_place):
        if only is None or each.name in only:
            results.append(await run_check(each, connector, env, kwargs))
            on_result(results[-1])
    return results


async def refusal_of(connector: Connector, env: str, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """What the server has against the arguments, in its own words; None where it has nothing, or says anything else.

    Cancellation closes what is open.
    """
    bench = Bench(connector, env, dict(kwargs or {}))
    try:
        async with bench.stream() as probe:
            await probe.send(pb.OPEN, bench.open_request().SerializeToString())
            message = await probe.receive()
            if isinstance(message, Message) and message.kind == pb.ERROR:
                error = parse_body(pb.Error, message.body)
                if error.code in (pb.BAD_KWARGS, pb.UNKNOWN_ENV):
                    return error.text or pb.ErrorCode.Name(error.code)
            await probe.send(pb.BYE)
    except AsyncRLError:  # which is for the checks to tell
        pass
    return None


async def run_check(each: Check, connector: Connector, env: str, kwargs: Mapping[str, Any] | None = None) -> Result:
    """One check, which is failed after CHECK_S. Cancellation closes what it has open."""
    bench = Bench(connector, env, dict(kwargs or {}))
    result = Result(each, "passed", notes=bench.notes)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(CHECK_S):
            await each.function(bench)
    except Skipped as skipped:
        result.status, result.reason = "skipped", str(skipped)
    except TimeoutError:
        result.status, result.reason = "failed", f"not through after {CHECK_S:g} s"
    except AsyncRLError as error:
        result.status, result.reason = "failed", str(error)
    result.seconds = loop.time() - began
    return result


def _place(each: Check) -> int:
    """Checks of others come last."""
    module = each.function.__module__
    return _ORDER.index(module) if module in _ORDER else len(_ORDER)
