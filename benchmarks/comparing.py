"""What benchmarks with peers share: who is asked, ratios within rounds, and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from benchmarks.report import Row
from benchmarks.running import middle
from benchmarks.workloads import Target


def asked(text: str | None, offered: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Of the peers `offered` by a workload those that `--peers` names; None: all, "none": none of them."""
    if text is None:
        return tuple(offered)
    wanted = [] if text == "none" else text.split(",")
    if set(wanted) - set(known):
        raise SystemExit(f"--peers: {', '.join(sorted(set(wanted) - set(known)))}? Known are {', '.join(known)}")
    return tuple(name for name in offered if name in wanted)


def ratios_to(ours: list[float], others: Mapping[str, list[float]]) -> dict[str, float]:
    """The median, over the rounds, of ours divided by each other."""
    return {
        name: middle([mine / other for mine, other in zip(ours, theirs, strict=False)])
        for name, theirs in others.items()
        if ours and theirs
    }


def verdict(workload: str, target: Target, value: float | None, unit: str) -> Row:
    """Whether the value, None where it was not measured, is what it should be."""
    note = "not measured" if value is None else "met" if target.met(value) else "MISSED"
    return Row(workload, f"target {target.of} {target}", value, unit, note=note)


def spelt(variant: str, threads: int) -> str:
    """A choice of a peer: its variant, and torch's threads."""
    return f"{variant}, threads {threads}" if variant else f"threads {threads}"
