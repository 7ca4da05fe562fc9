"""Network namespaces: other machines on this one, each with an address, a link that can fail, and processes of its own.

    with namespaces(2) as (left, right):
        EnvServerProcess(..., prefix=left.prefix, listen=f"{left.address}:0")
        left.cut()          # nothing gets through any more, nothing is said about it
        left.heal()

Needs root and iproute2 (`apt-get install -y iproute2`); `needs_namespaces` is the mark that says why it skips. Names
carry the pid of their maker: what a run that was killed has left is removed before anything new is made. Addresses are
of 198.18.0.0/15, the range for benchmarks, which no real network uses.

Invariant: whatever happens inside, nothing is left (test_nothing_is_left_of_a_namespace).
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

PREFIX: Final = "arl"


@functools.cache
def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root: run the tests as root to include it"
    if shutil.which("ip") is None:
        return "needs iproute2: apt-get install -y iproute2"
    name = f"{PREFIX}{os.getpid()}p"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"the kernel allows no network namespaces: {made.stderr.strip()}"
    ip("netns", "del", name)
    return None


def ip(*words: str) -> str:
    """`ip WORDS`; raises with what it said."""
    run = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if run.returncode:
        raise OSError(f"ip {' '.join(words)}: {run.stderr.strip()}")
    return run.stdout


def remove_stale() -> None:
    """Namespaces and links whose maker is no more."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if _is_stale(name):
            ip("netns", "del", name)
    for line in ip("-br", "link").splitlines():
        name = line.split()[0].partition("@")[0]
        if _is_stale(name):
            ip("link", "del", name)


def _is_stale(name: str) -> bool:
    found = re.fullmatch(rf"{PREFIX}(\d+)[a-z]\w*", name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()


@dataclass(frozen=True)
class Namespace:
    """`address` is inside, `host_address` is this side of the link."""

    name: str
    device: str
    address: str
    host_address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a command inside."""
        return ("ip", "netns", "exec", self.name)

    def inside(self, *words: str) -> str:
        """`ip` inside."""
        return ip("-n", self.name, *words)

    def cut(self, to_here: bool = True) -> None:
        """Packets vanish on their way out of the namespace (`to_here`), or on their way in."""
        if to_here:
            self.inside("route", "add", "blackhole", f"{self.host_address}/32")
            self.inside("addr", "del", f"{self.address}/30", "dev", f"{self.device}i")
            self.inside("addr", "add", f"{self.address}/32", "dev", "lo")
        else:
            ip("route", "add", "blackhole", f"{self.address}/32")

    def heal(self, to_here: bool = True) -> None:
        """Undo `cut`."""
        if to_here:
            self.inside("addr", "del", f"{self.address}/32", "dev", "lo")
            self.inside("addr", "add", f"{self.address}/30", "dev", f"{self.device}i")
            self.inside("route", "del", "blackhole", f"{self.host_address}/32")
        else:
            ip("route", "del", "blackhole", f"{self.address}/32")

    def pull(self) -> None:
        """Unplug the cable at this side."""
        ip("link", "set", self.device, "down")

    def plug(self) -> None:
        ip("link", "set", self.device, "up")


@contextmanager
def namespace(number: int) -> Iterator[Namespace]:
    """One namespace with a cable to ours."""
    base = _free_block()
    name = f"{PREFIX}{os.getpid()}n{number}"
    made = Namespace(name, name, f"198.{18 + (base >> 16)}.{base >> 8 & 255}.{(base & 255) + 2}", _host(base))
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}i")
        try:
            ip("link", "set", f"{name}i", "netns", name)
            ip("addr", "add", f"{made.host_address}/30", "dev", name)
            ip("link", "set", name, "up")
            made.inside("addr", "add", f"{made.address}/30", "dev", f"{name}i")
            made.inside("link", "set", f"{name}i", "up")
            made.inside("link", "set", "lo", "up")
            yield made
        finally:
            # Kills both ends; a route that `cut` left behind goes too.
            ip("link", "del", name)
            subprocess.run(["ip", "route", "del", "blackhole", f"{made.address}/32"], capture_output=True, check=False)
    finally:
        ip("netns", "del", name)


@contextmanager
def namespaces(count: int) -> Iterator[tuple[Namespace, ...]]:
    """So many, after what earlier runs left behind was removed."""
    remove_stale()
    with ExitStack() as stack:
        yield tuple(stack.enter_context(namespace(number)) for number in range(count))


def _free_block() -> int:
    """Four addresses of 198.18.0.0/15 that no route of ours leads to, as an offset."""
    routes = ip("-4", "route")
    while True:
        base = random.SystemRandom().randrange(1, 1 << 15) * 4
        if _host(base).rpartition(".")[0] + "." not in routes:
            return base


def _host(base: int) -> str:
    return f"198.{18 + (base >> 16)}.{base >> 8 & 255}.{(base & 255) + 1}"


needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
