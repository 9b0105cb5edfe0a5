"""System calls written down, to be made later by a forked process in one go.

A process that was just forked pays for every page of memory it touches.  Code that builds something goes all
over the interpreter's memory; a list of finished calls does not.  So what builds runs beforehand against a
`Recording`, which takes every success for granted, and `play` notices when something is not as expected.
"""

from __future__ import annotations

import errno

from execserver.sandbox.syscalls import Kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # What to call, with what, and the result that it must have; None for any.
    Step = tuple[Callable[..., object], tuple[object, ...], int | None]

# Calls that return a descriptor: always the lowest free number.
_OPENING = frozenset(("fsmount", "fsopen", "landlock_create_ruleset", "open_tree", "openat", "openat2"))


class Recording(Kernel):
    """Stands for a kernel and writes down what it is asked for.

    The process that plays it has the descriptors in `taken` open and no others.  What is closed with
    `close` stays open until the next `close_range`.
    """

    def __init__(self, kernel: Kernel, taken: Iterable[int]) -> None:
        self.__dict__.update(kernel.__dict__)  # what is found out about the one is known about the other
        self._plain = kernel
        self._taken = set(taken)
        self._steps: list[Step] = []
        self._names: list[str] = []

    def call(self, name: str, *arguments: object) -> int:
        """Write a system call down; return what it will: a descriptor, what is written, or else 0."""
        result = 0
        if name in _OPENING:
            result = self._next_descriptor()
        elif name == "write" and isinstance(arguments[2], int):
            result = arguments[2]
        elif name == "close":
            self._taken = {number for number in self._taken if number != arguments[0]}
        elif name == "close_range" and isinstance(arguments[0], int):
            self._taken = {number for number in self._taken if number < arguments[0]}
        self._steps.append((self.syscall, self.arguments(name, arguments), result))
        self._names.append(name)
        return result

    def attempt(self, name: str, *arguments: object) -> None:
        """Write a system call down whose result does not matter."""
        try:
            self._steps.append((self.syscall, self.arguments(name, arguments), None))
            self._names.append(name)
        except OSError:
            pass  # there is no such call

    def run(self, act: Callable[..., object], *given: object) -> None:
        """Write a call of a function down."""
        self._steps.append((act, given, None))
        self._names.append(act.__name__)

    def plain(self) -> Kernel:
        """Return the kernel that calls go to when they are played."""
        return self._plain

    def close(self, descriptor: int) -> None:
        """Let a descriptor be closed with all others at the next `close_range`: one call for them all."""
        if descriptor not in self._taken:
            raise ValueError(f"descriptor {descriptor} is not open")

    def taken(self) -> frozenset[int]:
        """Return the descriptors that are open after all that was recorded."""
        return frozenset(self._taken)

    def take(self) -> Recorded:
        """Return what was written down since the last time."""
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
    """A finished list of calls; `names` are those of the steps."""

    __slots__ = ("_kernel", "_names", "_steps")

    def __init__(self, kernel: Kernel, steps: tuple[Step, ...], names: tuple[str, ...]) -> None:
        self._kernel = kernel
        self._steps = steps
        self._names = names

    def play(self) -> None:
        """Make the calls.  Raises OSError, with the call as its file name, at the first other result."""
        for step in self._steps:
            act, given, expected = step
            result = act(*given)
            if result != expected and expected is not None:
                raise self._failure(step, result)

    def _failure(self, step: Step, result: object) -> OSError:
        name = next(name for name, known in zip(self._names, self._steps, strict=True) if known is step)
        if isinstance(result, int) and result < 0:
            return self._kernel.failure(name)
        return OSError(errno.EBADF, "not the expected descriptor", name)
