"""A process that writes as much as it can, watched from outside."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.peer import Peer
from tests.support.proc import state
from tests.support.running import Outcome, output_until, start
from tests.support.waiting import wait_until

STABLE_LOOKS = 10


class Producer:
    """Writes `size` bytes of a file; the first thing it writes is its own id."""

    def __init__(
        self, peer: Peer, size: int, process_id: str = "p", source: str | Path = "/dev/zero"
    ) -> None:
        start(peer, process_id, f"echo $$; exec head -c {size} {shlex.quote(str(source))}")
        self.collected = Outcome()
        self.pid = int(output_until(peer, process_id, b"\n", self.collected).split(b"\n")[0])

    def written(self) -> int:
        """Return how many bytes it has written so far."""
        fields = Path(f"/proc/{self.pid}/io").read_text().split()
        return int(fields[fields.index("wchar:") + 1])

    def wait_until_blocked(self) -> int:
        """Wait until it sleeps and has written nothing for a while; return what it has written."""
        looks: list[int] = []

        def blocked() -> bool:
            looks.append(self.written() if state(self.pid) == "S" else -len(looks))
            return len(looks) >= STABLE_LOOKS and len(set(looks[-STABLE_LOOKS:])) == 1

        wait_until(blocked, 20)
        return looks[-1]
