"""Probes the bubblewrap of this machine: asks for its options and has it build a sandbox root."""

from __future__ import annotations

import os
import select
import signal
import time

from execserver.sandbox.backends import bwrap
from execserver.sandbox.backends.probe import attempt
from execserver.sandbox.backends.report import BUBBLEWRAP, Check
from execserver.sandbox.backends.stage import reserve
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import NETWORK_NONE, NETWORK_PROXY, ROOT_READ_ONLY, SandboxPlan
from execserver.sandbox.proxy.joining import join_network
from execserver.sandbox.rootfs.landlock_rules import closes_fifos

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT_S = 2.0
_OUTPUT_BYTES = 64 * 1024
_STATUS_BYTES = 4096
_CURE = "install the bubblewrap of the distribution (apt, dnf or apk add bubblewrap), 0.8 or newer"
_CURE_OF_STAGES = "sysctl -w vm.memfd_noexec=1"
# How its messages begin when it may not make the namespaces that it needs.
_NO_NAMESPACES = (
    "No permissions to create",
    "Creating new namespace failed",
    "setting up uid map",
    "loopback: Failed",
    "Failed to make / slave",
)


def try_bwrap(search_path: bytes, cwd: bytes, cure: str = "") -> tuple[bwrap.Bwrap | None, Check]:
    """Find a bubblewrap in the server's search path and try it; return it if it can be a back end.

    `cure` is the remedy if namespaces are refused to bubblewrap, too.  Without one, the remedy is the
    set-user-id bit.
    """
    try:
        found = bwrap.find(search_path, cwd)
    except bwrap.Rejected as error:
        return None, Check(BUBBLEWRAP, False, "", f"{error}", _CURE)
    if found is None:
        return None, Check(BUBBLEWRAP, False, "", "there is no bwrap in the server's PATH", _CURE)
    name = os.fsdecode(found.path)
    # Not concluded from the version: Debian 12's 0.8.0 has `--bind-fd`, most others before 0.10 do not.
    status, text = run([found.path, b"--help"])
    lacking = found.take_help(text)
    if status or lacking:
        return None, Check(BUBBLEWRAP, False, "", f"{name} is too old: it lacks {lacking or '--help'}", _CURE)
    found.version = run([found.path, b"--version"])[1].strip().rpartition(" ")[2]
    refusal = _refusal_of_stages()
    if refusal:
        return None, Check(BUBBLEWRAP, False, "", f"{name} {found.version}: {refusal}", _CURE_OF_STAGES)
    blocker = _trial(found)
    kind = "setuid" if found.setuid else "not setuid"
    if blocker:
        cure = cure or (_CURE if found.setuid else f"chown root {name} && chmod u+s {name}")
        return None, Check(BUBBLEWRAP, False, "", f"{name} {found.version} ({kind}): {blocker}", cure)
    found.joinable = _can_be_joined(found)
    notes = [kind, *(option for option, has in _notable(found) if has)]
    return found, Check(BUBBLEWRAP, True, f"{name} {found.version} ({', '.join(notes)})")


def _notable(found: bwrap.Bwrap) -> tuple[tuple[str, bool], ...]:
    joinable = ("networks can be joined", found.joinable)
    return ("takes --argv0", found.argv0), ("takes --bind-fd", found.bind_fd), joinable


def _refusal_of_stages() -> str:
    """Return why the Landlock stage cannot be executed here; "" if it can, or is not needed."""
    kernel = Kernel()
    if not closes_fifos(landlock.abi(kernel), SandboxPlan(ROOT_READ_ONLY)):
        return ""
    try:
        os.close(reserve())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _trial(found: bwrap.Bwrap) -> str:
    """Build a read-only sandbox root without network and run bubblewrap itself in it.

    Returns why that failed, or "".
    """
    plan = SandboxPlan(ROOT_READ_ONLY, network=NETWORK_NONE)
    status, text = run([found.path, *bwrap.root_arguments(plan, found), b"--", found.path, b"--version"])
    if not status:
        return ""
    lines = [line for line in text.splitlines() if line.startswith("bwrap: ")]
    told = lines[0].removeprefix("bwrap: ").partition(", likely")[0] if lines else f"status {status}"
    if told.startswith(_NO_NAMESPACES):
        return f"it may not make namespaces either ({told})"
    return f"it cannot build a view ({told})"


def _can_be_joined(found: bwrap.Bwrap) -> bool:
    """Return whether a process of ours can enter the network of a sandbox that this bubblewrap makes."""
    plan = SandboxPlan(ROOT_READ_ONLY, network=NETWORK_PROXY)
    held, release = os.pipe2(os.O_CLOEXEC)
    told, tells = os.pipe2(os.O_CLOEXEC)
    for descriptor in (held, tells):
        os.set_inheritable(descriptor, True)
    numbers = [b"--block-fd", b"%d" % held, b"--json-status-fd", b"%d" % tells]
    argv = [found.path, *bwrap.root_arguments(plan, found), *numbers, b"--", found.path, b"--version"]
    joined = False
    try:
        pid = os.posix_spawn(found.path, argv, {}, setsid=True)
        os.close(tells)
        tells = -1
        if select.select([told], [], [], _LIMIT_S)[0]:
            inside = bwrap.first_process(os.read(told, _STATUS_BYTES))
            joined = bool(inside) and attempt(lambda: join_network(Kernel(), inside)) is None
            if inside:
                os.kill(inside, signal.SIGKILL)  # bubblewrap's death is not its own before it goes on
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return joined
    except OSError:
        return False
    finally:
        for descriptor in (held, release, told, tells):
            if descriptor >= 0:
                os.close(descriptor)


def run(argv: Sequence[bytes]) -> tuple[int, str]:
    """Run a program without variables or input; return its exit status and what it wrote to both outputs.

    A program that does not end in time is killed; its status is negative then.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    actions = (
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_DUP2, writer, 2),
    )
    try:
        pid = os.posix_spawn(argv[0], [*argv], {}, file_actions=actions, setsid=True)
    except OSError as error:
        os.close(reader)
        return 127, f"bwrap: {os.strerror(error.errno or 0)}"
    finally:
        os.close(writer)
    try:
        text = _read_until(reader, time.monotonic() + _LIMIT_S, pid)
    finally:
        os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text.decode("utf-8", "replace")


def _read_until(reader: int, deadline: float, pid: int) -> bytes:
    data = b""
    while len(data) < _OUTPUT_BYTES:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        piece = os.read(reader, _OUTPUT_BYTES)
        if not piece:
            return data
        data += piece
    os.kill(pid, signal.SIGKILL)
    return data
