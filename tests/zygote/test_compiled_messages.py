"""What the compiled template reads: anything but a whole message that fits ends in nothing that runs."""

from __future__ import annotations

import _socket
import errno
import os
import struct
from collections.abc import Callable

import pytest

from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.namespaces import Identity
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_RESTRICTED
from execserver.sandbox.rootfs.compiled import compiled
from execserver.zygote.confine.compiled_template import CompiledTemplate
from execserver.zygote.confine.sandbox_init import prepare
from tests.support.roots import USERS, in_child, plan
from tests.support.sandbox_init import COMPILED, program_of

pytestmark = pytest.mark.skipif(
    in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
)

RO = plan()
NEEDED = 0x10000000 | 0x20000 | 0x20000000  # user, mounts, pids


def plan_message(**changes: bytes) -> bytes:
    """Return a plan's message, with some bytes of it changed: places of the head by name."""
    root = prepare(Kernel(), RO, Identity(), True, [b"sys"])
    form = None if root is None else compiled(root)
    assert form is not None
    message = bytearray(form.message(0, 1))
    for name, change in changes.items():
        at = PLACES[name] if name in PLACES else len(message) + int(name.removeprefix("end_"))
        message[at : at + len(change)] = change
    return bytes(message)


# Of a plan: its head, and its first step.
PLACES = {"kind": 0, "size": 4, "number": 8, "slot": 16, "covers": 20, "tie": 24, "data": 52, "step": 56}
START = struct.Struct("<II2Q3q6I")


def start_message(
    flags: int = NEEDED,
    number: int = 1,
    slot: int = 0,
    strings: bytes = b"/\0\0x\0x\0x\0",
    counts: str = "0 0 1 1 0",
) -> bytes:
    size = START.size + len(strings)
    return START.pack(3, size, number, flags, -1, -1, -1, slot, *map(int, counts.split())) + strings


MALFORMED: dict[str, Callable[[], bytes]] = {
    "nothing known": lambda: b"\x09\0\0\0\x08\0\0\0",
    "short": lambda: b"\x02\0\0",
    "another size": lambda: plan_message(size=b"\xff\xff\0\0"),
    "no head": lambda: b"\x02\0\0\0\x08\0\0\0",
    "slot": lambda: plan_message(slot=b"\x10\0\0\0"),
    "number": lambda: plan_message(number=bytes(8)),
    "covers": lambda: plan_message(covers=b"\x41\0\0\0"),
    "steps": lambda: plan_message(tie=b"\xff\xff\xff\xff"),
    "data": lambda: plan_message(data=b"\xff\xff\xff\xff"),
    "kind of a step": lambda: plan_message(step=b"\x08\0"),
    "cover out of place": lambda: plan_message(step=b"\x05\0"),
    "pointer out of bounds": lambda: plan_message(step=b"\0\0\x01\0" + bytes(12) + b"\xff" * 8),
    "terminal out of place": lambda: plan_message(step=b"\0\0\0\x01"),
    "filter without code": lambda: plan_message(step=b"\x07\0\0\0"),
    "filter out of bounds": lambda: plan_message(step=b"\x07\0\x01\0" + bytes(20) + b"\xff\xff\xff\x0f"),
    "unknown bits": lambda: plan_message(step=b"\0\0\x40\0"),
    "no end": lambda: plan_message(**{"end_-1": b"x"}),
    "a watch for the zygote's": lambda: struct.pack("<2IQ8s", 4, 24, 8, bytes(8)),
    "spare of no namespaces": lambda: struct.pack("<2IQ", 5, 16, 0),
    "spare without flags": lambda: struct.pack("<2I", 5, 8),
    "texts": lambda: struct.pack("<6I4s", 1, 28, 9000, 0, 0, 2, b"a\0bc"),
    "fewer texts": lambda: struct.pack("<6I4s", 1, 28, 9000, 0, 0, 3, b"a\0b\0"),
    "more texts": lambda: struct.pack("<6I4s", 1, 28, 9000, 0, 0, 135, b"a\0b\0"),
}
UNFIT: dict[str, Callable[[], bytes]] = {
    "another plan": lambda: start_message(number=2),
    "another slot": lambda: start_message(slot=1),
    "no such slot": lambda: start_message(slot=16),
    "no user namespace": lambda: start_message(flags=NEEDED & ~0x10000000),
    "no mount namespace": lambda: start_message(flags=NEEDED & ~0x20000),
    "unknown flags": lambda: start_message(flags=NEEDED | 0x100),
    "covers": lambda: start_message(counts="0 1 1 1 0", strings=bytes(24) + b"/\0\0x\0x\0x\0"),
    "stdin": lambda: start_message(counts="1 0 1 1 0"),
    "a terminal": lambda: start_message(strings=b"/\0/dev/pts/0\0x\0x\0x\0"),
    "too short": lambda: start_message(strings=b"/\0"),
}
UNREADABLE: dict[str, Callable[[], bytes]] = {
    "no end": lambda: start_message(strings=b"/\0\0x\0x\0x"),
    "fewer strings": lambda: start_message(strings=b"/\0\0x\0x\0"),
    "more strings": lambda: start_message(strings=b"/\0\0x\0x\0x\0x\0"),
    "no argument": lambda: start_message(strings=b"/\0\0x\0x\0", counts="0 0 1 0 0"),
    "a great many": lambda: start_message(counts="0 0 1 1 4294967295"),
}


def told(*messages: bytes, descriptors: int = 3) -> str:
    """Return what comes of messages: "ended N", or the errno of the answer and what the init reported."""
    program = program_of(COMPILED)

    def act() -> int:
        template = CompiledTemplate(Kernel(), program, FILTER_RESTRICTED)
        assert template.start()
        sock = template._socket
        assert sock is not None
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for message in messages:
            given = [theirs, null, null, null][:descriptors] if message[0] == 3 else []
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(given)}i", *given))]
            sock.sendmsg([message], rights if given else [])
        os.close(theirs)
        if messages[-1][0] != 3:
            _, status = os.waitpid(template._pid, 0)
            os.write(1, b"ended %d" % os.waitstatus_to_exitcode(status))
            return 0
        pid, number = struct.unpack("<ii", sock.recv(8))
        os.write(
            1, b"%s %s" % (errno.errorcode.get(number, "OK").encode(), os.read(ours, 100) if pid else b"")
        )
        sock.close()
        return 0

    outcome = in_child(act, USERS[-1])
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_ends_the_template(name: str) -> None:
    assert told(MALFORMED[name]()) == "ended 1"


@pytest.mark.parametrize("name", UNFIT)
def test_a_start_that_fits_no_plan_forks_nothing(name: str) -> None:
    assert told(plan_message(), UNFIT[name]()) == "EINVAL "


@pytest.mark.parametrize("descriptors", [0, 1, 2, 4])
def test_a_start_without_its_descriptors_forks_nothing(descriptors: int) -> None:
    assert told(plan_message(), start_message(), descriptors=descriptors) == "EINVAL "


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_start_that_cannot_be_read_starts_nothing(name: str) -> None:
    assert told(plan_message(), UNREADABLE[name]()) == "OK "


def test_a_call_with_another_result_is_told_while_nothing_runs() -> None:
    # The plan protects an entry of /proc that an ordinary user does not own; the message is otherwise right.
    assert told(plan_message(), start_message(), descriptors=3) in ("OK U", "OK RE\x00e\x00\x00")


def test_without_the_filter_it_does_not_begin() -> None:
    program = program_of(COMPILED)

    def act() -> int:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            os.dup2(theirs.fileno(), 3)
            os.execve(program, [b"x"], {})
        theirs.close()
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d %r" % (os.waitstatus_to_exitcode(status), ours.recv(1)))
        return 0

    assert in_child(act, USERS[-1]).out == "1 b''"
