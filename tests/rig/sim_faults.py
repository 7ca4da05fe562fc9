"""`FaultPlan`: which faults happen in a simulated run, drawn from a seed or read from a list.

Code of the simulation asks `plan.hit("site")` where something may go wrong. A run switches each site on with
`SITE_ON` and every visit of a site that is on hits with `HIT`. What hit is written down as a `Fault`; a plan made
from such a list hits exactly there, which is what replay and shrinking need. Every visit draws from numbers of its
own (seed, site, visit), so that deleting one fault does not move the others.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from tests.rig.ledger_rules import mix

SITE_ON: Final = 0.25
HIT: Final = 0.05

# site -> what happens there, and how often relative to HIT: frames are many, dials are few.
SITES: Final[dict[str, tuple[str, float]]] = {
    "dial.refused": ("a new stream breaks before anything arrives", 4.0),
    "dial.slow": ("a new stream needs seconds until the server sees it", 4.0),
    "describe.fails": ("Describe finds nobody", 2.0),
    "c2s.cut": ("the stream breaks with a client's frame on its way", 0.2),
    "s2c.cut": ("the stream breaks with a server's frame on its way", 0.2),
    "s2c.half": ("as s2c.cut, but the server notices seconds later", 0.2),
    "c2s.stall": ("nothing gets through to the server for a while", 0.1),
    "s2c.stall": ("nothing gets through to the client for a while", 0.1),
    "c2s.slow": ("a frame and all behind it are late", 0.5),
    "s2c.slow": ("a frame and all behind it are late", 0.5),
    "c2s.twice": ("a request arrives a second time", 1.0),
    "s2c.twice": ("a reply arrives a second time", 1.0),
    "c2s.flip": ("a byte of a client's frame changes", 0.1),
    "s2c.flip": ("a byte of a server's frame changes", 0.1),
    "lane.crash_before": ("a lane's process dies with the request unread", 0.2),
    "lane.crash_after": ("a lane's process dies with the reply unsent", 0.2),
    "lane.crash_sent": ("a lane's process dies right after its reply", 0.2),
    "lane.hang": ("a lane's process never answers", 0.1),
    "lane.slow": ("a request takes seconds", 0.5),
    "lane.start": ("a lane's process dies while it starts", 2.0),
    "env.raise": ("an environment raises in step", 0.2),
    "server.kill": ("a server's process dies and comes back", 1.0),
    "server.drain": ("a server drains and comes back", 0.5),
    "server.hole": ("nothing gets through to a server or from it for a while", 1.0),
}


class Fault(NamedTuple):
    """The `visit`-th visit of `site` hit."""

    site: str
    visit: int

    def __str__(self) -> str:
        return f"{self.site}:{self.visit}"

    @staticmethod
    def parse(text: str) -> Fault:
        site, _, visit = text.partition(":")
        if site not in SITES:
            raise ValueError(f"no fault site {site!r}; there are {', '.join(SITES)}")
        return Fault(site, int(visit))


class FaultPlan:
    """See the module. After `heal` nothing hits any more. `only` replays a list instead of drawing."""

    def __init__(self, seed: int, only: Collection[Fault] | None = None) -> None:
        self.hits: list[Fault] = []
        self.healed = False
        self._seed = seed
        self._only = None if only is None else frozenset(only)
        self._visits: Counter[str] = Counter()

    def hit(self, site: str) -> bool:
        """Whether this visit of the site goes wrong."""
        if self.healed:
            return False
        visit = self._visits[site]
        self._visits[site] += 1
        fault = Fault(site, visit)
        if self._only is not None:
            hits = fault in self._only
        else:
            is_on = self._draw(site, -1) < SITE_ON
            hits = is_on and self._draw(site, visit) < HIT * SITES[site][1]
        if hits:
            self.hits.append(fault)
        return hits

    def amount(self, site: str, low: float, high: float) -> float:
        """How long or how large the hit just made is; fixed by its place in the schedule."""
        return low + (high - low) * self._draw(f"{site}/amount", self._visits[site])

    def heal(self) -> None:
        self.healed = True

    def _draw(self, site: str, visit: int) -> float:
        """Uniform in [0, 1)."""
        return mix(mix(self._seed ^ zlib.crc32(site.encode()) << 24) + visit + 1 & (1 << 64) - 1) / 2.0**64


def describe(hits: Collection[Fault]) -> str:
    """The schedule for people; its words are what `--faults` of the replay takes."""
    return " ".join(map(str, hits)) or "none"
