"""A wire between two network namespaces of this machine that delays packets and loses some.

    python -m bench.delayed_wire NAMESPACE NAMESPACE DELAY_MS LOSS_PERCENT

Each end is a TUN device `wire0`; a line is printed when both are there.  The kernel's own netem does the
same, but many kernels come without it.  After SIGUSR1 every packet is lost, until SIGUSR2.  What arrives
while 20,000 packets are on their way is lost, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
DEVICE = "wire0"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 65536
_MOST_ON_THE_WAY = 20_000


class Wire:
    """Both ends, and the packets on their way: when they arrive, at which end, and their bytes."""

    def __init__(self, ends: tuple[int, int], delay_s: float, loss: float) -> None:
        self._other = {ends[0]: ends[1], ends[1]: ends[0]}
        self._delay_s = delay_s
        self._loss = loss
        self._is_cut = False
        self._on_the_way: deque[tuple[float, int, bytes]] = deque()
        self._chance = random.Random(1)

    def cut(self, number: int, frame: object) -> None:
        """Lose everything from now on, or no longer."""
        self._is_cut = number == signal.SIGUSR1

    def run(self) -> None:
        """Carry packets for good."""
        while True:
            due = self._on_the_way[0][0] - time.monotonic() if self._on_the_way else None
            readable, _, _ = select.select(list(self._other), [], [], None if due is None else max(0.0, due))
            for end in readable:
                self._take(end)
            self._deliver()

    def _take(self, end: int) -> None:
        while True:
            try:
                packet = os.read(end, _PACKET_BYTES)
            except BlockingIOError:
                return
            lost = self._is_cut or self._chance.random() < self._loss
            if not lost and len(self._on_the_way) < _MOST_ON_THE_WAY:
                self._on_the_way.append((time.monotonic() + self._delay_s, self._other[end], packet))

    def _deliver(self) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= time.monotonic():
            _, end, packet = self._on_the_way.popleft()
            try:
                if not self._is_cut:
                    os.write(end, packet)
            except OSError:
                pass  # the queue of the device is full, which is how packets are lost


def enter(namespace: str) -> None:
    """Be in a network namespace.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _end_in(namespace: str) -> int:
    enter(namespace)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH14x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return end


def main(argv: list[str]) -> None:
    """Make the ends, say so, and carry packets."""
    near, far, delay_ms, loss_percent = argv
    wire = Wire((_end_in(near), _end_in(far)), float(delay_ms) / 1000, float(loss_percent) / 100)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, wire.cut)
    print("ready", flush=True)
    wire.run()


if __name__ == "__main__":
    main(sys.argv[1:])
