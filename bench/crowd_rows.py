"""What is measured of one relay with 15,000 environments: its state in memory, and with an engine.

Their executors are scripted, in processes of their own (`tools/cluster/crowd.py`), and slower than the relay:
so rates are those of a second of the relay's CPU time, user and system, not of a second by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench.cluster_rows import ClusterRow, Columns, folder
from bench.relay_ends import RelayUnderTest
from bench.relay_rows import Row
from tools.cluster.crowd import Crowd, tokens_in_engine
from tools.cluster.descriptors import allowed_for_children
from tools.cluster.redis_server import RedisServer

_SIZE, _QUICK_SIZE = 15_000, 1000
_DESCRIPTORS = 17_000  # of the relay
_IDLE_S = 35.0  # more than the time between two pings
_REST_S = 12.0  # a relay at rest returns memory after some seconds
_TOKENS_NOTICED_S = 2.5
_GATHERED_S = 300.0

Measure = Callable[[RelayUnderTest, Crowd, int], float]


def memory(relay: RelayUnderTest, crowd: Crowd, size: int) -> float:
    """Register and connect all, and look at the relay's memory before and after, each time at rest."""
    time.sleep(_REST_S)
    before = relay.resident_bytes
    crowd.register(_GATHERED_S)
    crowd.connect(_GATHERED_S)
    time.sleep(_REST_S)
    return (relay.resident_bytes - before) / size / 1024


def upgrades(relay: RelayUnderTest, crowd: Crowd, size: int) -> float:
    """Upgrade each executor once more where all are connected; it takes the place of its former websocket."""
    crowd.register(_GATHERED_S)
    crowd.connect(_GATHERED_S)
    begun = relay.cpu_s
    crowd.connect_anew(_GATHERED_S)
    return size / max(relay.cpu_s - begun, 0.01)


def first_upgrades(relay: RelayUnderTest, crowd: Crowd, size: int) -> float:
    """Upgrade each executor for the first time where all are registered."""
    crowd.register(_GATHERED_S)
    begun = relay.cpu_s
    crowd.connect(_GATHERED_S)
    return size / max(relay.cpu_s - begun, 0.01)


def idle(relay: RelayUnderTest, crowd: Crowd, size: int) -> float:
    """Leave them alone for some seconds, pings and their answers included."""
    crowd.register(_GATHERED_S)
    crowd.connect(_GATHERED_S)
    begun = relay.cpu_s
    time.sleep(_IDLE_S)
    return (relay.cpu_s - begun) / _IDLE_S * 100


def _with_crowd(measure: Measure) -> Callable[[Sequence[str], bool], Columns]:
    """Measure one node with its state and tokens in memory, then with an engine that has both."""

    def both(program: Sequence[str], quick: bool) -> Columns:
        size = _QUICK_SIZE if quick else _SIZE
        names = [f"crowd-{number}" for number in range(size)]
        columns = {}
        for column, parts in (("memory", _in_memory), ("engine", _with_engine)):
            with parts(program, names) as (relay, crowd):
                columns[column] = measure(relay, crowd, size)
        return columns

    return both


CROWD_ROWS = {
    "crowd_memory": ClusterRow(Row("15,000 environments, memory of each", "KiB", False), _with_crowd(memory)),
    "crowd_first": ClusterRow(
        Row("15,000 environments, first upgrades by CPU time", "/s", True), _with_crowd(first_upgrades)
    ),
    "crowd_shake": ClusterRow(
        Row("15,000 environments, further upgrades by CPU time", "/s", True), _with_crowd(upgrades)
    ),
    "crowd_idle": ClusterRow(Row("15,000 environments, idle", "% of core", False), _with_crowd(idle)),
}


@contextmanager
def _in_memory(program: Sequence[str], names: Sequence[str]) -> Iterator[tuple[RelayUnderTest, Crowd]]:
    with ExitStack() as stack:
        stack.enter_context(allowed_for_children(_DESCRIPTORS))
        relay = stack.enter_context(RelayUnderTest(program, None))
        tokens = dict(zip(names, relay.make_tokens(names), strict=True))
        time.sleep(_TOKENS_NOTICED_S)
        yield relay, _crowd_of(stack, relay, tokens)


@contextmanager
def _with_engine(program: Sequence[str], names: Sequence[str]) -> Iterator[tuple[RelayUnderTest, Crowd]]:
    with ExitStack() as stack:
        stack.enter_context(allowed_for_children(_DESCRIPTORS))
        engine = RedisServer(stack.enter_context(folder()))
        stack.callback(engine.service.kill)
        engine.start()
        tokens = tokens_in_engine(engine, names)
        words = ("--engine", engine.url, "--node", "n1")
        relay = stack.enter_context(RelayUnderTest(program, None, words, has_token_file=False))
        yield relay, _crowd_of(stack, relay, tokens)


def _crowd_of(stack: ExitStack, relay: RelayUnderTest, tokens: dict[str, str]) -> Crowd:
    name, token = next(iter(tokens.items()))
    relay.scripted_executor(token, name).close()  # what the first one loads stays out
    crowd = Crowd(stack.enter_context(folder()), relay.url.rpartition("/")[2], tokens)
    stack.callback(crowd.close)
    return crowd
