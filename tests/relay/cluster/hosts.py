"""Hosts of a test's own: network namespaces on two networks, each of which can be cut off either.

The front network leads to the balancer, the back one to the engine; both end in this process's namespace.  A
cut takes the port out of its bridge: packets vanish, and neither side is told anything.
"""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Iterable

from tests.support.dead_link import ip
from tools.cluster.cluster import Host

FRONT, BACK = "f", "b"


class Hosts:
    """Two bridges and a namespace for each name; `close` removes all of it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._id = f"es{uuid.uuid4().hex[:6]}"
        # Never the same network twice: a namespace that was deleted may answer for a while.
        front, back = random.sample(range(1, 255), 2)
        self._networks = {FRONT: f"10.214.{front}", BACK: f"10.214.{back}"}
        self._links: list[str] = []
        self._spaces: list[str] = []
        self.hosts: dict[str, Host] = {}
        try:
            for net in self._networks:
                self._add_bridge(net)
            for number, name in enumerate(names, 11):
                self._add_host(name, number)
        except OSError:
            self.close()
            raise

    @property
    def engine_address(self) -> str:
        """Where an engine of this namespace is reached from the hosts."""
        return f"{self._networks[BACK]}.1"

    def cut(self, name: str, net: str) -> None:
        """Let packets between a host and one network vanish."""
        ip("link", "set", self._port(name, net), "nomaster")

    def heal(self, name: str, net: str) -> None:
        """Undo `cut`."""
        ip("link", "set", self._port(name, net), "master", self._bridge(net))

    def close(self) -> None:
        """Remove everything."""
        for space in self._spaces:
            ip("netns", "del", space)
        for link in self._links:
            ip("link", "del", link)

    def _add_bridge(self, net: str) -> None:
        bridge = self._bridge(net)
        ip("link", "add", bridge, "type", "bridge")
        self._links.append(bridge)
        ip("addr", "add", f"{self._networks[net]}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")

    def _add_host(self, name: str, number: int) -> None:
        space = f"{self._id}{name}"
        ip("netns", "add", space)
        self._spaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        for net, network in self._networks.items():
            ours, theirs = self._port(name, net), f"in{net}"
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", space)
            ip("link", "set", ours, "master", self._bridge(net), "up")
            ip("-n", space, "addr", "add", f"{network}.{number}/24", "dev", theirs)
            ip("-n", space, "link", "set", theirs, "up")
        self.hosts[name] = Host(f"{self._networks[FRONT]}.{number}", ("ip", "netns", "exec", space))

    def _bridge(self, net: str) -> str:
        return f"{self._id}{net}"

    def _port(self, name: str, net: str) -> str:
        return f"{self._id}{net}{name}"


def cannot_make_hosts() -> str:
    """Return why hosts cannot be made here; nothing when they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        Hosts(("probe",)).close()
    except OSError as error:
        return str(error)
    return ""
