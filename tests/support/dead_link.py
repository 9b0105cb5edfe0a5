"""Two links to a network namespace of the test's own, one of which can be cut so that packets vanish.

A cable that is pulled, a laptop that falls asleep: neither side is told anything. The namespace and the links
are the test's and end with it; `cannot_make_links` says why this machine does not allow them.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import uuid

CUT, WHOLE = 0, 1


def ip(*words: str) -> None:
    """Configure links and namespaces; raises OSError with what `ip` says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class DeadLink:
    """A namespace with two links; commands run inside with `prefix`."""

    def __init__(self) -> None:
        self.name = f"es{uuid.uuid4().hex[:8]}"
        # Never the same network twice: a namespace that was deleted may answer for a while.
        self._networks = [f"10.213.{third}" for third in random.sample(range(1, 255), 2)]
        self._made: list[str] = []
        ip("netns", "add", self.name)
        try:
            ip("-n", self.name, "link", "set", "lo", "up")
            for index in (CUT, WHOLE):
                self._add_link(index)
        except OSError:
            self.close()
            raise

    def _add_link(self, index: int) -> None:
        ours, theirs = f"{self.name}{index}", f"in{index}"
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.name)
        self._made.append(ours)
        ip("addr", "add", f"{self._networks[index]}.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", self.name, "addr", "add", f"{self._networks[index]}.2/30", "dev", theirs)
        ip("-n", self.name, "link", "set", theirs, "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that make it run in the namespace, as the same process."""
        return ("ip", "netns", "exec", self.name)

    def url(self, index: int, port: int) -> str:
        """Return how a server in the namespace is reached over one of the links."""
        return f"ws://{self._networks[index]}.2:{port}"

    def cut(self) -> None:
        """Let packets on the first link vanish, in both directions."""
        ip("link", "set", self._made[CUT], "down")

    def close(self) -> None:
        """Remove everything."""
        for name in self._made:
            ip("link", "del", name)
        ip("netns", "del", self.name)


def cannot_make_links() -> str:
    """Return why links cannot be made here; nothing when they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        DeadLink().close()
    except OSError as error:
        return str(error)
    return ""
