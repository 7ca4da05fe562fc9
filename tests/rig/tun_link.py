"""`TunLink`: a cable between us and a namespace that loses, delays and swallows IP packets, without netem.

Both ends are TUN devices; whatever one of them is given by its kernel side, the event loop hands to the other one, or
does not. TCP above it sees real loss and real silence.

Invariant: what TCP delivers over a lossy link is what was sent (test_tcp_survives_a_lossy_link).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.rig.netns import PREFIX, _free_block, _host, ip

_DEVICE: Final = Path("/dev/net/tun")
_SET_INTERFACE: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x0001 | 0x1000
_PACKETS_A_TURN: Final = 64


@dataclass
class TunLink:
    """Change the fields at any time. `address` is inside the namespace `name`."""

    name: str
    address: str
    host_address: str
    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    down: bool = False  # swallow everything
    passed: int = 0
    lost: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def carry(self, source: int, target: int) -> None:
        """Read what is there at one end, and bring it to the other one later or never."""
        loop = asyncio.get_running_loop()
        for _ in range(_PACKETS_A_TURN):
            try:
                packet = os.read(source, 65535)
            except BlockingIOError:
                return
            if self.down or self.rng.random() < self.loss:
                self.lost += 1
                continue
            self.passed += 1
            late = self.delay_s + self.rng.random() * self.jitter_s
            if late:
                loop.call_later(late, _deliver, target, packet)
            else:
                _deliver(target, packet)


def _deliver(target: int, packet: bytes) -> None:
    # The device is full or gone: a packet is lost, which is what packets do.
    with contextlib.suppress(OSError):
        os.write(target, packet)


@contextmanager
def tun_link(seed: int = 0) -> Iterator[TunLink]:
    """A namespace at the far end of such a cable. Use it on a running loop."""
    base = _free_block()
    name = f"{PREFIX}{os.getpid()}nt"
    inside = f"198.{18 + (base >> 16)}.{base >> 8 & 255}.{(base & 255) + 2}"
    link = TunLink(name, inside, _host(base), rng=random.Random(seed))
    loop = asyncio.get_running_loop()
    ip("netns", "add", name)
    near, far = _open_tun(f"{name}a"), _open_tun(f"{name}b")
    try:
        ip("link", "set", f"{name}b", "netns", name)
        ip("addr", "add", link.host_address, "peer", inside, "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "addr", "add", inside, "peer", link.host_address, "dev", f"{name}b")
        ip("-n", name, "link", "set", f"{name}b", "up")
        ip("-n", name, "link", "set", "lo", "up")
        loop.add_reader(near, link.carry, near, far)
        loop.add_reader(far, link.carry, far, near)
        yield link
    finally:
        # The devices go with their descriptors.
        for descriptor in (near, far):
            loop.remove_reader(descriptor)
            os.close(descriptor)
        ip("netns", "del", name)


def _open_tun(name: str) -> int:
    descriptor = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return descriptor
