"""The probe of interception: how the shell tool can notice every program that a shell starts here.

Either the kernel reports them (notification), whatever the shell and whatever starts them; or a shell with
the wrapper patch does, for its own commands only.  Nothing is concluded from a version: every step that a
supervisor takes is tried in throw-away processes.  The back end of the sandbox makes no difference to
notification: the supervisor is outside of all of them, and the ancestor and creator of what is inside.

The caller has one thread, and its descriptors 0, 1 and 2 are open.  Everything ends within its time limit.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import signal

from execserver.sandbox.backends.probe import attempt, read_facts
from execserver.sandbox.backends.report import Check
from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision import records
from execserver.zygote.supervision.trap import install
from execserver.zygote.supervision.trap.forced_exit import ForcedExit
from execserver.zygote.supervision.trap.notify import Listener
from execserver.zygote.supervision.trap.process_memory import Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

NOTIFICATION = "notification"  # the name of the check and of the method

# Steps of a supervisor, in their order.
STEP_FILTER = "filter that tells of system calls"
STEP_CONTINUE = "letting a call go on"
STEP_MEMORY = "reading of a program's arguments"
STEP_DESCRIPTORS = "copying of a program's descriptors"
STEP_EXIT = "ptrace of a program"

SHELL_LIMIT_S = 5.0  # for a shell to start one program

_FILTERED = 2  # the seccomp mode of a process that has a filter
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
# Two paths that can be told apart and that no kernel executes: both are the root directory.
_PATHS = (b"/", b"//")
_CODE = 43  # an exit status that the child would not have otherwise
_ANSWER_MS = 2000
_MARK = "what the wrapper gets to see"
_ECHO = ("/bin/echo", "/usr/bin/echo", "/run/current-system/sw/bin/echo")
_REFUSALS = (errno.EPERM, errno.EACCES)
_CONTAINER = (
    "start the container with --cap-add SYS_PTRACE, or with a seccomp profile that allows seccomp, ptrace, "
    "pidfd_open and pidfd_getfd"
)
_PATCHED_SHELL = "name a shell with the wrapper patch with --bash"


class Choice:
    """The method that works for a shell: NOTIFY or WRAPPER, or None for neither.

    `reason` tells people why it is not NOTIFY, and for None also what to do about it.
    """

    __slots__ = ("interception", "reason")

    def __init__(self, interception: int | None, reason: str = "") -> None:
        self.interception = interception
        self.reason = reason


def choose(shell: str, kernel: Kernel | None = None) -> Choice:
    """Return how programs that `shell` (a path) starts are noticed here.  Takes 10 ms, at most seconds."""
    check = check_notification(kernel)
    if check.works:
        return Choice(records.NOTIFY)
    why_not = is_not_patched(shell)
    if not why_not:
        return Choice(records.WRAPPER, check.blocker)
    return Choice(
        None,
        f"no program can be watched here: {check.blocker}; {why_not}. "
        f"What to do: {check.cure}; or {_PATCHED_SHELL}",
    )


def check_notification(kernel: Kernel | None = None) -> Check:
    """Try whether the kernel reports programs, and lets the supervisor end and replace them."""
    kernel = kernel or Kernel()
    # In a fork: a filter that was installed can never be removed again.
    failed = attempt(lambda: _try_notification(kernel))
    if failed is None:
        return Check(NOTIFICATION, True, "every program of any shell is asked for (the shell tool)")
    return Check(NOTIFICATION, False, "", *_explain(*failed))


def is_not_patched(shell: str) -> str:
    """Start a program from a shell with a wrapper set; return why no wrapper was called, "" if one was."""
    # With `echo` as the wrapper, what the shell executes prints what a wrapper is given.
    echo = next((path for path in _ECHO if os.access(path, os.X_OK)), None)
    if echo is None:
        return f"whether {shell} has the wrapper patch cannot be tried without an `echo` program"
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with open(reader, "rb", 0), open(writer, "wb", 0) as output:
        try:
            pid = _start_shell(shell, echo, output.fileno())
        except OSError as error:
            return f"{shell} cannot be started: {os.strerror(error.errno or 0)}"
        output.close()  # else the pipe would not end with the shell
        said = _read_until_end(reader)
    _end(pid)
    # A wrapper's arguments are the program's path and its argv, argv[0] included.
    return "" if said == f"{echo} {echo} {_MARK}\n".encode() else f"{shell} has no wrapper patch"


def _start_shell(shell: str, echo: str, output: int) -> int:
    return os.posix_spawn(
        shell,
        # Two commands, since a shell executes the last one without a fork, in its own place.
        [shell, "-c", f"{echo} '{_MARK}' || exit; :"],
        {"BASH_EXEC_WRAPPER": echo, "EXEC_WRAPPER": echo},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,  # `_end` kills the group, whatever the shell has started by then
    )


def _try_notification(kernel: Kernel) -> None:
    """Do all that a supervisor does with a child of ours; raise OSError with the step as filename."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            _be_the_program(kernel, theirs.detach())
        finally:
            os._exit(errno.EIO)
    theirs.close()  # so that the end of the child ends the receive below
    descriptor = install.receive_listener(ours)
    if descriptor is None:
        # The child's exit status is the errno of what failed there.
        number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        raise _failed(STEP_FILTER, number if number > 0 else errno.EIO)
    listener = Listener(descriptor, kernel)
    try:
        _supervise(kernel, listener, pid)
    finally:
        listener.close()
        ours.close()


def _be_the_program(kernel: Kernel, channel: int) -> None:
    """Be the watched process: never return, exit with the errno of what failed."""
    try:
        privileges.die_with_parent(kernel)
        privileges.no_new_privileges(kernel)
        install.hand_over(kernel, channel)
    except OSError as error:
        os._exit(error.errno or errno.EIO)
    for path in _PATHS:
        try:
            os.execv(path, [b"x"])
        except OSError:
            pass  # the first call is continued, and fails in the kernel


def _supervise(kernel: Kernel, listener: Listener, pid: int) -> None:
    # Two calls, since one that is continued cannot be ended afterwards.
    first = _next_call(listener, _PATHS[0])
    _step(STEP_CONTINUE, lambda: listener.carry_on(first))
    second = _next_call(listener, _PATHS[1])
    _step(STEP_DESCRIPTORS, lambda: _copy_a_descriptor(kernel, pid))
    leave = ForcedExit(kernel)
    leave.await_change = _pause
    if not leave.end(listener, second, pid, _CODE):
        # A supervisor could still kill the process, but then no program could run in its place: the caller's
        # exit status would be lost.
        os.kill(pid, signal.SIGKILL)
        raise _failed(STEP_EXIT, errno.EPERM)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != _CODE:
        raise _failed(STEP_EXIT, errno.EIO)


def _pause(limit_ms: float) -> None:
    """Wait a little for a thread to stop."""
    select.select([], [], [], min(limit_ms, 1) / 1000)


def _next_call(listener: Listener, path: bytes) -> int:
    """Wait for the call with that path; return its identity."""
    poll = select.poll()
    poll.register(listener.descriptor, select.POLLIN)
    if not poll.poll(_ANSWER_MS):
        raise _failed(STEP_FILTER, errno.ETIMEDOUT)
    found = listener.receive()
    if found is None:
        raise _failed(STEP_FILTER, errno.EIO)
    if _step(STEP_MEMORY, lambda: _path_of(found.tid, found.arguments[0])) != path:
        raise _failed(STEP_MEMORY, errno.EIO)
    return found.id


def _path_of(tid: int, address: int) -> bytes:
    memory = Memory(tid)
    try:
        return memory.path(address)
    finally:
        memory.close()


def _copy_a_descriptor(kernel: Kernel, pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        os.close(kernel.call("pidfd_getfd", pidfd, 2, 0))
    finally:
        os.close(pidfd)


def _step(name: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except OSError as error:
        raise _failed(name, error.errno or errno.EIO) from None


def _failed(step: str, number: int) -> OSError:
    return OSError(number, os.strerror(number), step)


def _explain(step: str, number: int) -> tuple[str, str]:
    """Return the blocker and the remedy for a step that failed with an errno.

    Settings serve to explain only: what works was tried.
    """
    name = errno.errorcode.get(number, str(number))
    scope = _yama_scope()
    # The kernel allows one listener for each process, those of its ancestors included.
    if step == STEP_FILTER and number == errno.EBUSY:
        return (
            f"a filter around this process has a listener of its own already ({name})",
            "start the container without an agent that listens for system calls",
        )
    if number in (errno.ENOSYS, errno.EINVAL):
        return (
            f"the kernel, or a container's seccomp filter, has no {step or NOTIFICATION} ({name})",
            "use Linux 5.9 or newer with CONFIG_SECCOMP_FILTER, on x86-64 or aarch64; in a container, "
            f"{_CONTAINER}",
        )
    # A scope of 1 lets a process trace its descendants, which is all that a supervisor does.
    if number in _REFUSALS and step != STEP_FILTER and scope > 1:
        return (
            f"Yama refuses the {step} (kernel.yama.ptrace_scope={scope}, {name})",
            "sysctl -w kernel.yama.ptrace_scope=1 (a scope of 3 stays until the next start of the machine)",
        )
    if number in _REFUSALS and read_facts().seccomp_mode == _FILTERED:
        return f"a seccomp filter, as container programs set one, refuses the {step} ({name})", _CONTAINER
    return (
        f"the kernel or a security module refuses the {step or NOTIFICATION} ({name})",
        "allow the server ptrace of its own children",
    )


def _yama_scope() -> int:
    try:
        with open(_YAMA, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0  # a kernel without Yama


def _read_until_end(descriptor: int) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    said = b""
    # Bounded, as the shell is whatever a user has named.
    while len(said) <= len(_MARK) * 10 and poll.poll(SHELL_LIMIT_S * 1000):
        piece = os.read(descriptor, 512)
        if not piece:
            break
        said += piece
    return said


def _end(pid: int) -> None:
    """Kill a shell, which leads its session, and its process group; reap it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass  # it has ended
    os.waitpid(pid, 0)
