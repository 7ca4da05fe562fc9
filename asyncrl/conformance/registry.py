"""What a check is, how it fails, and the list of all of them.

A check is a coroutine function with one sentence that says what the server must do. It gets a `Bench`, notes what it
did and saw, and raises `Failed` or `Skipped`; a typed error of asyncrl that it does not expect is a failure too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from asyncrl.conformance.verdicts import Failed

if TYPE_CHECKING:
    from asyncrl.conformance.bench import Bench

Status = Literal["passed", "failed", "skipped"]
CheckFunction = Callable[["Bench"], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One promise of the protocol. `section` is where env.proto makes it."""

    name: str
    demand: str
    section: str
    function: CheckFunction


@dataclass
class Result:
    """What became of one check."""

    check: Check
    status: Status
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "check": self.check.name,
            "demand": self.check.demand,
            "section": self.check.section,
            "status": self.status,
            "reason": self.reason,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


CHECKS: Final[dict[str, Check]] = {}


def check(section: str) -> Callable[[CheckFunction], CheckFunction]:
    """Registers a check; its docstring is the demand that it makes."""

    def register(function: CheckFunction) -> CheckFunction:
        name = str(getattr(function, "__name__", ""))
        demand = " ".join((function.__doc__ or "").split())
        if not demand or name in CHECKS:
            raise ValueError(f"check {name!r} needs a docstring and a name of its own")
        CHECKS[name] = Check(name, demand, section, function)
        return function

    return register


def expect(condition: bool, text: str) -> None:
    """Raise Failed(text) unless the condition holds."""
    if not condition:
        raise Failed(text)
