"""Records system calls, which a forked process replays later in one go.

A process that was just forked pays for every page of memory that it touches.  Code that builds something
touches much of the interpreter's memory; a list of finished calls does not.  So the building code runs
beforehand against a `Recording`, which assumes that every call succeeds.  `play` notices any other result.
"""

from __future__ import annotations

import errno

from execserver.sandbox.kernel.syscalls import Kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # What to call, its arguments, and the result that it must have; None for any.
    Step = tuple[Callable[..., object], tuple[object, ...], int | None]

# Calls that return a descriptor.  The kernel always gives the lowest free number, so it is known beforehand
# and can be an argument of later calls.
_OPENING = frozenset(("fsmount", "fsopen", "landlock_create_ruleset", "open_tree", "openat", "openat2"))


class Recording(Kernel):
    """Takes the place of a `Kernel` and records the calls that it is asked for.

    The process that replays them has the descriptors in `taken` open and no others.  What is closed with
    `close` stays open until the next `close_range`.
    """

    def __init__(self, kernel: Kernel, taken: Iterable[int]) -> None:
        # The same dictionary of what the kernel can do: nothing is tried twice, and nothing while recording.
        self.__dict__.update(kernel.__dict__)
        self._plain = kernel
        self._taken = set(taken)
        self._steps: list[Step] = []
        self._names: list[str] = []

    def call(self, name: str, *arguments: object) -> int:
        """Record a system call; return its future result: a descriptor, the number of bytes written, or 0."""
        result = 0
        if name in _OPENING:
            result = self._next_descriptor()
        elif name == "write" and isinstance(arguments[2], int):
            result = arguments[2]
        elif name == "close":
            # A new set each time: `taken` may have given out the old one.
            self._taken = {number for number in self._taken if number != arguments[0]}
        elif name == "close_range" and isinstance(arguments[0], int):
            self._taken = {number for number in self._taken if number < arguments[0]}
        # The number is looked up now, and the step keeps alive the bytes and structures that the call reads.
        self._steps.append((self.syscall, self.arguments(name, arguments), result))
        self._names.append(name)
        return result

    def attempt(self, name: str, *arguments: object) -> None:
        """Record a system call whose result does not matter."""
        try:
            self._steps.append((self.syscall, self.arguments(name, arguments), None))
            self._names.append(name)
        except OSError:
            pass  # there is no such call here, so there is nothing to replay

    def run(self, act: Callable[..., object], *given: object) -> None:
        """Record a call of a function, which raises OSError where replaying has to stop."""
        self._steps.append((act, given, None))
        self._names.append(act.__name__)

    def plain(self) -> Kernel:
        """Return the kernel that calls go to when they are replayed: for functions that `run` records."""
        return self._plain

    def close(self, descriptor: int) -> None:
        """Let the next `close_range` close a descriptor together with all others: one call for them all."""
        # It stays taken: the number is not free before that call.  A mistake shows while recording.
        if descriptor not in self._taken:
            raise ValueError(f"descriptor {descriptor} is not open")

    def taken(self) -> frozenset[int]:
        """Return the descriptors that are open after everything recorded so far."""
        return frozenset(self._taken)

    def take(self) -> Recorded:
        """Return what was recorded since the last time."""
        recorded = Recorded(self, tuple(self._steps), tuple(self._names))
        self._steps.clear()
        self._names.clear()
        return recorded

    def _next_descriptor(self) -> int:
        number = 0
        while number in self._taken:
            number += 1
        self._taken.add(number)
        return number


class Recorded:
    """A finished list of calls, with a name for each step."""

    __slots__ = ("_kernel", "_names", "_steps")

    def __init__(self, kernel: Kernel, steps: tuple[Step, ...], names: tuple[str, ...]) -> None:
        self._kernel = kernel
        self._steps = steps
        self._names = names

    @property
    def steps(self) -> tuple[Step, ...]:
        """The calls, in their order."""
        return self._steps

    def play(self) -> None:
        """Make the calls.  Raises OSError at the first unexpected result, with the call as its file name."""
        # This loop runs in the forked process and must touch little memory: no name is looked at before one
        # fails.
        for step in self._steps:
            act, given, expected = step
            result = act(*given)
            # Another descriptor than the recorded one is a failure too: later calls would use the wrong file.
            if result != expected and expected is not None:
                raise self._failure(step, result)

    def _failure(self, step: Step, result: object) -> OSError:
        name = next(name for name, known in zip(self._names, self._steps, strict=True) if known is step)
        if isinstance(result, int) and result < 0:
            return self._kernel.failure(name)
        return OSError(errno.EBADF, "not the expected descriptor", name)
