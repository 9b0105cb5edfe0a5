"""What many lives of something leave in this process when the garbage collector never runs.

What has ended must be freed by its reference count: a cycle waits for a collection, and collections are rare
in a server.  `assert_freed(life, lives)` turns the collector off, plays the lives, and fails with the objects
that are still there, by type.  Of our own types (defined in `execserver` or the SDK; and functions, methods,
generators and frames of their code), of greenlets, watchers, tracebacks and exceptions none may be left; of
any other type less than one for every second life, since foreign code may fill a cache.

What the census cannot see is what the collector does not track: text, bytes, numbers, and records whose
members are all of that kind (msgspec's).  `blocks_per_life` counts those as well, as allocated blocks.

To find the cycle: the failure shows, for each type of ours, the shortest way from one of the objects back to
itself.  When there is none, the object hangs on something that lives: then it shows who refers to it.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from greenlet import greenlet

from execserver.eventloop.delay_queue import DelayQueue
from tests.support.greenlets import turns

_OURS = ("execserver", "execserver_client")
_ALWAYS_COUNTED = (greenlet, types.TracebackType, BaseException)
_WATCHERS = "gevent.libev."
_POOL_THREAD = "_WorkerGreenlet"  # gevent's
_WAY_STEPS = 20_000  # objects looked at to find a cycle
_HOLDERS = 5

Census = Counter[str]


class Left(NamedTuple):
    """What is there after some lives and was not before, by type: objects of ours, and of others."""

    ours: dict[str, int]
    foreign: dict[str, int]
    blocks_per_life: float


def census() -> Census:
    """Count what the collector tracks: by type, code objects by the name of their code.

    Threads of a pool, two greenlets each, are left out.  There are as many as calls have overlapped, at most
    the pool's size, and that depends on what else the machine does.  So does whether the one timer of a queue
    runs, which holds a method of the queue's while it does: the queue itself is counted.
    """
    objects = [each for each in gc.get_objects() if not _is_of_a_timer(each)]
    threads = [each for each in objects if type(each).__name__ == _POOL_THREAD]
    spared = {id(each) for thread in threads for each in (thread, thread.parent)}
    found: Census = Counter()
    for each in objects:
        if id(each) not in spared:
            found[_kind(each)] += 1
    return found


def _is_of_a_timer(each: object) -> bool:
    return isinstance(each, types.MethodType) and each.__func__ is DelayQueue._fire


def difference(before: Census, after: Census, lives: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return what came in between: all that is ours, and what is foreign and came with half of the lives."""
    more = {kind: count - before[kind] for kind, count in after.items() if count > before[kind]}
    ours = {kind: count for kind, count in more.items() if kind.startswith("our ")}
    foreign = {kind: count for kind, count in more.items() if kind not in ours and count >= lives / 2}
    return ours, foreign


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect what there is, and then nothing until the end of the block."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def left_by(
    life: Callable[[int], object], lives: int, *, settle: Callable[[], object] = turns, warm_up: int = 5
) -> Left:
    """Play `life(number)` so many times, without a collection, and return what is left of it.

    `settle` is called before each count: it lets everything end that is about to.
    """
    for number in range(warm_up):
        life(-1 - number)
    settle()
    with collector_off():
        before = census()
        blocks = sys.getallocatedblocks()
        for number in range(lives):
            life(number)
        settle()
        more_blocks = sys.getallocatedblocks() - blocks
        return Left(*difference(before, census(), lives), more_blocks / lives)


def assert_freed(
    life: Callable[[int], object],
    lives: int,
    *,
    settle: Callable[[], object] = turns,
    foreign: Iterable[str] = (),
) -> None:
    """Fail when objects are left that only a collection would free; `foreign` types may be."""
    left = left_by(life, lives, settle=settle)
    others = {kind: count for kind, count in left.foreign.items() if kind not in foreign}
    if left.ours or others:
        found = f"after {lives} lives there are {left.ours} of ours and {others} of others"
        raise AssertionError(f"{found}\n{explained(left.ours)}")


def explained(kinds: Iterable[str]) -> str:
    """Say for one object of each type which cycle holds it; without a cycle, who holds it."""
    wanted = set(kinds)
    samples: dict[str, object] = {}
    for each in reversed(gc.get_objects()):  # the newest come last
        kind = _kind(each)
        if kind in wanted:
            samples.setdefault(kind, each)
    ways = {kind: _way_back(sample) for kind, sample in samples.items()}
    cycles = [f"{kind}: cycle {' -> '.join(map(_name, way))}" for kind, way in ways.items() if way]
    return "\n".join(
        cycles or [f"{kind}: no cycle; held by {_holders(each)}" for kind, each in samples.items()]
    )


def _holders(sample: object) -> str:
    found = [each for each in gc.get_referrers(sample) if type(each) not in (types.FrameType, types.CellType)]
    return ", ".join(_name(each) for each in found[:_HOLDERS])


def _way_back(start: object) -> list[object]:
    """Return the shortest chain of references from an object to itself."""
    came_from: dict[int, object] = {}
    queue: deque[object] = deque([start])
    while queue and len(came_from) < _WAY_STEPS:
        each = queue.popleft()
        for further in gc.get_referents(each):
            if further is start:
                way = [start, each]
                while each is not start:
                    each = came_from[id(each)]
                    way.append(each)
                return way[::-1]
            if id(further) not in came_from and gc.is_tracked(further) and not _is_lasting(further):
                came_from[id(further)] = each
                queue.append(further)
    return []


def _is_lasting(each: object) -> bool:
    """Tell what no object of a life is part of: types, modules, and their names."""
    of = type(each)
    return issubclass(of, type | types.ModuleType) or (of is dict and "__builtins__" in cast(Any, each))


def _name(each: Any) -> str:
    return f"dict({', '.join(map(str, list(each)[:4]))})" if type(each) is dict else _kind(each)


def _kind(each: Any) -> str:
    """Return the name of an object's type, with "our " before what must not be left.

    Nothing is asked of the object itself: it may be a proxy of something that is gone.
    """
    of = type(each)
    what = _CODE_OF.get(of)
    if what is not None:
        module, name = what(each)
        return f"our {of.__name__} {name}" if _is_ours(module) else f"{of.__name__} {name}"
    name = f"{of.__module__}.{of.__qualname__}"
    counted = issubclass(of, _ALWAYS_COUNTED) or name.startswith(_WATCHERS) or _is_ours(of.__module__)
    return f"our {name}" if counted else name


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] in _OURS


_CODE_OF: dict[type, Callable[[Any], tuple[object, str]]] = {
    types.FunctionType: lambda each: (each.__module__, each.__qualname__),
    types.MethodType: lambda each: (type(each.__self__).__module__, getattr(each, "__qualname__", "")),
    types.FrameType: lambda each: (each.f_globals.get("__name__"), each.f_code.co_qualname),
    types.GeneratorType: lambda each: (_module_of(each.gi_code.co_filename), each.__qualname__),
}


def _module_of(path: str) -> str:
    place = path.partition("/site-packages/")[0]
    return next((name for name in _OURS if f"/{name}/" in place), "")
