from __future__ import annotations

import _socket
import ctypes
import errno
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox import seccomp
from execserver.sandbox.plan import FILTER_NONE, FILTER_PROXY_ROUTED, FILTER_RESTRICTED
from execserver.sandbox.seccomp_table import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    ALWAYS,
    ARCHITECTURES,
    DOMAIN_NOT,
    NO_CALL,
    NUMBERS,
    PROXY_ROUTED,
    RESTRICTED,
    TYPE_IS,
    Rule,
)
from tests.support import views
from tests.support.views import USERS

MACHINES = tuple(ARCHITECTURES)
TABLES = {"restricted": RESTRICTED, "proxy-routed": PROXY_ROUTED}
SOCK_FLAGS = 0o2000000 | 0o4000
I386 = 0x40000003


def interpret(program: bytes, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """Run a filter program as the kernel does; return its verdict."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == seccomp.AND:
            accumulator &= operand
        elif operation == seccomp.JUMP_EQUAL:
            at += if_true if accumulator == operand else if_false
        elif operation == seccomp.JUMP_GREATER_EQUAL:
            at += if_true if accumulator >= operand else if_false
        else:
            assert operation == seccomp.RETURN
            return int(operand)


def refused(rules: tuple[Rule, ...], name: str, domain: int, kind: int) -> bool:
    """Read the table anew."""
    for rule, condition, values in rules:
        if rule != name:
            continue
        if condition == ALWAYS:
            return True
        if condition == DOMAIN_NOT and domain not in values:
            return True
        if condition == TYPE_IS and kind & 0xF in values:
            return True
    return False


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("table", TABLES)
def test_the_program_refuses_what_the_table_says_and_nothing_else(machine: str, table: str) -> None:
    rules = TABLES[table]
    program = seccomp.program(rules, machine)
    names = {number: name for name, number in NUMBERS[machine].items()}
    for number in range(1024):
        for domain in (0, AF_UNIX, AF_INET, AF_INET6, 16, 40, 1 << 31):
            for kind in (1, 2, 3, 5, 1 | SOCK_FLAGS, 2 | SOCK_FLAGS, 3 | SOCK_FLAGS, 5 | SOCK_FLAGS):
                verdict = interpret(program, number, ARCHITECTURES[machine], (domain, kind))
                expected = number in names and refused(rules, names[number], domain, kind)
                assert verdict == (seccomp.REFUSE if expected else seccomp.ALLOW), (number, domain, kind)


@given(
    st.sampled_from(MACHINES),
    st.sampled_from(list(TABLES)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_any_call_gets_the_verdict_of_the_table(
    machine: str, table: str, number: int, domain: int, kind: int
) -> None:
    names = {value: name for name, value in NUMBERS[machine].items()}
    program = seccomp.program(TABLES[table], machine)
    verdict = interpret(program, number, ARCHITECTURES[machine], (domain, kind))
    if machine == "x86_64" and number >= 0x40000000 and number != NO_CALL:
        assert verdict == seccomp.KILL
    else:
        name = names.get(number, "")
        expected = refused(TABLES[table], name, domain & 0xFFFFFFFF, kind & 0xFFFFFFFF)
        assert verdict == (seccomp.REFUSE if expected else seccomp.ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("architecture", [I386, 0x40000028, 0, *ARCHITECTURES.values()])
def test_foreign_calls_kill(machine: str, architecture: int) -> None:
    program = seccomp.program(RESTRICTED, machine)
    verdict = interpret(program, 0, architecture, ())
    assert verdict == (seccomp.ALLOW if architecture == ARCHITECTURES[machine] else seccomp.KILL)


def test_the_tables_hold_the_calls_of_the_contract() -> None:
    always = {name for name, condition, _ in RESTRICTED if condition == ALWAYS}
    assert always == {
        *("ptrace", "process_vm_readv", "process_vm_writev"),
        *("io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("connect", "accept", "accept4", "bind", "listen", "getpeername", "getsockname", "shutdown"),
        *("sendto", "sendmmsg", "recvmmsg", "getsockopt", "setsockopt"),
    }
    assert {name for name, condition, _ in PROXY_ROUTED if condition == ALWAYS} == {
        *("ptrace", "process_vm_readv", "process_vm_writev"),
        *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    }


def test_no_filter_has_no_rules() -> None:
    assert seccomp.rules_of(FILTER_NONE) == ()


def attempts(domain: int, pairs: bool) -> Iterator[tuple[str, int]]:
    """Try to make sockets of a domain; yield the type and the errno, 0 for a success."""
    for name, kind in (("stream", 1), ("datagram", 2), ("raw", 3), ("seqpacket", 5)):
        try:
            if pairs:
                for made in _socket.socketpair(domain, kind):
                    made.close()
            else:
                _socket.socket(domain, kind).close()
        except OSError as error:
            yield name, error.errno or 0
        else:
            yield name, 0


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("pairs", [False, True], ids=["socket", "socketpair"])
def test_unix_datagrams_are_refused_and_streams_work(user: int, pairs: bool) -> None:
    outcome = views.call(views.plan(), lambda: dict(attempts(AF_UNIX, pairs)), user=user)
    assert outcome.value == {"stream": 0, "datagram": errno.EPERM, "raw": errno.EPERM, "seqpacket": 0}


def test_the_restricted_filter_leaves_no_network_and_no_tracing() -> None:
    def payload() -> object:
        domains = (AF_INET, AF_INET6, 16, 17, 40)
        refusals = [number for domain in domains for _, number in attempts(domain, False)]
        lib = ctypes.CDLL(None, use_errno=True)
        calls = {"traceme": lib.ptrace(0, 0, 0, 0), "ring": lib.syscall(425, 1, 0)}
        # Unix streams between relatives work by read, write and sendmsg.
        one, other = _socket.socketpair(AF_UNIX, _socket.SOCK_STREAM)
        one.sendmsg([b"word"])
        return set(refusals), calls, other.recv(10)

    expected = ({errno.EPERM}, {"traceme": -1, "ring": -1}, b"word")
    assert views.call(views.plan(), payload).value == expected


def test_the_proxy_filter_leaves_internet_sockets_only() -> None:
    def payload() -> object:
        found = [dict(attempts(domain, False))["stream"] for domain in (AF_UNIX, AF_INET, AF_INET6)]
        return found, dict(attempts(AF_UNIX, True))["stream"]

    outcome = views.call(views.plan(syscall_filter=FILTER_PROXY_ROUTED), payload)
    assert outcome.value == ([errno.EPERM, 0, 0], 0)


@pytest.mark.parametrize(("chosen", "mode"), [(FILTER_NONE, "0"), (FILTER_RESTRICTED, "2")])
def test_a_filter_is_there_when_the_plan_asks_for_one(chosen: str, mode: str) -> None:
    outcome = views.run(views.plan(syscall_filter=chosen), "grep Seccomp: /proc/self/status")
    assert outcome.out.split() == ["Seccomp:", mode]
