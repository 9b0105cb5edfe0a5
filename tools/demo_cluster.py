"""A relay cluster on this machine: what its users notice when parts of it die.

    python -m tools.demo_cluster PROGRAM...

PROGRAM is the words that start execserver.  Three relays behind HAProxy share a Redis with two replicas and
three Sentinels; an executor in each of six environments streams to a harness, which is this process.  All of
it is on loopback, in a folder of its own, and gone at the end, whatever the end is.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gevent

from tools.cluster.cluster import Cluster
from tools.cluster.redis_server import Replicated
from tools.cluster.streams import Streams
from tools.demo import INTERRUPTS, play
from tools.problems import Failed, Problem, tell

ENVIRONMENTS = tuple(f"box-{number}" for number in range(1, 7))
_QUIET_S = 1.0  # of streaming between two faults


class ClusterDemo:
    """One run: owns a folder, a cluster in it, and its streams, until `clean_up`."""

    def __init__(self, program: list[str]) -> None:
        """Take all places.  Raises Problem for a program that is missing."""
        self._folder = Path(tempfile.mkdtemp(prefix="execserver-demo-"))
        self._streams = Streams(())
        try:
            engine = Replicated(self._folder, _pause)
            self._cluster = Cluster(self._folder, program, engine, words=("--drain", "2"), pause=_pause)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._engine = engine

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Return what is done: name and action, which returns what there is to show."""
        return [
            ("start Redis, Sentinels, relays, HAProxy", self.start),
            ("connect an executor in six environments", self.add_executors),
            ("stream from all of them", self.stream),
            ("kill -9 the node with the most of them", self.kill_node),
            ("kill -9 the primary of Redis", self.kill_primary),
            *(
                (f"drain {name}, replace it", lambda name=name: self.drain(name))
                for name in self._cluster.nodes
            ),
            ("end the streams, compare hashes", self.compare),
        ]

    def start(self) -> str:
        """Start everything but the ends."""
        INTERRUPTS.hold()  # they come while something is waited for, see `_pause`
        self._cluster.start()
        return f"{self._cluster.balancer.url}, {self._engine.url}"

    def add_executors(self) -> str:
        """Connect the executors."""
        self._cluster.add_executors(*ENVIRONMENTS)
        return self._spread()

    def stream(self) -> str:
        """Connect harnesses, and wait until they read."""
        self._streams = Streams([self._cluster.stream(name) for name in ENVIRONMENTS])
        self._go_on()
        return f"worst pause meanwhile {self._streams.worst_pause():.2f} s"

    def kill_node(self) -> str:
        """Kill the node with the most executors, and start it again once the streams go on."""
        homes = list(self._cluster.homes().values())
        name = max(self._cluster.nodes, key=homes.count)
        node = self._cluster.nodes[name]
        self._streams.mark()
        node.service.kill()
        self._cluster.wait_for_move(name)
        self._go_on()
        pause = self._streams.worst_pause()
        node.start()
        self._cluster.balancer.wait_until("UP")
        return f"{name} with {homes.count(name)} executors: worst pause {pause:.2f} s"

    def kill_primary(self) -> str:
        """Kill the primary, and wait until there is another one that lets new harnesses in."""
        former = self._engine.current()
        self._streams.mark()
        begun = time.monotonic()
        former.service.kill()
        self._cluster.wait_for(lambda: self._engine.current() is not former, "there is another primary")
        self._cluster.wait_for_reach(*ENVIRONMENTS)
        took = time.monotonic() - begun
        pause = self._streams.worst_pause()
        self._go_on()
        return f"new harnesses after {took:.1f} s; worst pause of the streams {pause:.2f} s"

    def drain(self, name: str) -> str:
        """End a node as an upgrade does, and start it again."""
        node = self._cluster.nodes[name]
        self._streams.mark()
        node.service.send(signal.SIGTERM)
        node.service.wait()
        self._cluster.wait_for_move(name)
        self._go_on()
        pause = self._streams.worst_pause()
        node.start()
        self._cluster.balancer.wait_until("UP")
        return f"worst pause {pause:.2f} s"

    def compare(self) -> str:
        """Read what is left, and compare what was sent with what arrived."""
        results = self._streams.end()
        broken = [name for name, result in zip(ENVIRONMENTS, results, strict=True) if not result.is_whole]
        if broken:
            raise Failed(f"not what was sent: {', '.join(broken)}")
        if any(result.resumptions for result in results):
            raise Failed("a stream was lost, and its session resumed")
        mib = sum(result.size for result in results) / (1 << 20)
        return f"{len(results)} streams, {mib:.1f} MiB: every byte, no session resumed"

    def last_words(self) -> str:
        """Return what the processes said last."""
        return self._cluster.last_words()

    def clean_up(self) -> None:
        """End what runs and remove what is there."""
        INTERRUPTS.hold()
        try:
            self._streams.drop()
        finally:
            self._cluster.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _go_on(self) -> None:
        self._cluster.wait_for(self._streams.flow(), "every stream goes on")
        _pause(_QUIET_S)

    def _spread(self) -> str:
        homes = list(self._cluster.homes().values())
        return ", ".join(f"{homes.count(name)} at {name}" for name in self._cluster.nodes)


def main(program: list[str]) -> int:
    """Show it; return as `demo.main` does, and 1 with the cure where a program is missing."""
    INTERRUPTS.hold()
    INTERRUPTS.install()
    try:
        demo = ClusterDemo(program)
    except Problem as problem:
        return tell(problem)
    return play(demo)


def _pause(seconds: float) -> None:
    """Wait; the only place for interrupts, so that no process is started and not noted."""
    INTERRUPTS.release()
    gevent.sleep(seconds)
    INTERRUPTS.hold()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
