from __future__ import annotations

import _socket
import ctypes
import errno
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.kernel import seccomp
from execserver.sandbox.kernel.seccomp_numbers import NUMBERS
from execserver.sandbox.kernel.seccomp_requests import KNOWN_REQUESTS, REFUSED_RANGES, REFUSED_REQUESTS
from execserver.sandbox.kernel.seccomp_table import (
    ABSENT,
    AF_INET,
    AF_INET6,
    AF_NETLINK,
    AF_UNIX,
    ALWAYS,
    ARCHITECTURES,
    COMMON,
    FIRST_NOT,
    NO_CALL,
    OPEN,
    PROXY_ROUTED,
    REQUEST_OUTSIDE,
    RESTRICTED,
    SECOND_IS,
    SECOND_NOT,
    SECOND_WITHIN,
    TYPE_IS,
    WITHOUT_NAMESPACES,
    Rule,
)
from execserver.sandbox.plan import FILTER_NONE, FILTER_OPEN, FILTER_PROXY_ROUTED, FILTER_RESTRICTED
from tests.support import roots
from tests.support.roots import USERS

MACHINES = tuple(ARCHITECTURES)
TABLES = {
    "restricted": RESTRICTED,
    "proxy-routed": PROXY_ROUTED,
    "open": OPEN,
    "restricted, without namespaces": (*RESTRICTED, *WITHOUT_NAMESPACES),
    "open, without namespaces": (*OPEN, *WITHOUT_NAMESPACES),
}
SOCK_FLAGS = 0o2000000 | 0o4000
I386 = 0x40000003
RINGS = {"io_uring_setup", "io_uring_enter", "io_uring_register"}


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
        elif operation == seccomp.JUMP:
            at += operand
        elif operation == seccomp.JUMP_EQUAL:
            at += if_true if accumulator == operand else if_false
        elif operation == seccomp.JUMP_GREATER_EQUAL:
            at += if_true if accumulator >= operand else if_false
        else:
            assert operation == seccomp.RETURN
            return int(operand)


def within(value: int, bounds: tuple[int, ...]) -> bool:
    return any(first <= value <= last for first, last in zip(bounds[::2], bounds[1::2], strict=True))


def judged(rules: tuple[Rule, ...], name: str, first: int, second: int) -> int:
    """Read the table anew."""
    first, second = first & 0xFFFFFFFF, second & 0xFFFFFFFF
    for _, condition, values in (rule for rule in rules if rule[0] == name):
        if condition == ABSENT:
            return seccomp.LACK
        if condition == REQUEST_OUTSIDE:
            return seccomp.ALLOW if within(second, values) else seccomp.MISFIT
        holds = {
            ALWAYS: True,
            FIRST_NOT: first not in values,
            SECOND_NOT: second not in values,
            SECOND_IS: second in values,
            SECOND_WITHIN: condition == SECOND_WITHIN and within(second, values),
            TYPE_IS: second & 0xF in values,
        }
        if holds[condition]:
            return seccomp.REFUSE
    return seccomp.ALLOW


FIRSTS = (0, AF_UNIX, AF_INET, 3, AF_INET6, AF_NETLINK, 38, 40, 1 << 31, 1 << 32, (1 << 32) + 1)
SECONDS = tuple(
    {
        *(0, 1, 2, 3, 5, 1 | SOCK_FLAGS, 2 | SOCK_FLAGS, 3 | SOCK_FLAGS, 5 | SOCK_FLAGS, 1024, 1040),
        *(bound + step for bound in (*KNOWN_REQUESTS, *REFUSED_RANGES) for step in (-1, 0, 1)),
        *(request + high for request in REFUSED_REQUESTS for high in (0, 1 << 32)),
    }
)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("table", TABLES)
def test_the_program_refuses_what_the_table_says_and_nothing_else(machine: str, table: str) -> None:
    rules = TABLES[table]
    program = seccomp.program(rules, machine)
    names = {number: name for name, number in NUMBERS[machine].items()}
    for number in range(512):
        for first in FIRSTS:
            # Only these look at the second argument.
            seconds = SECONDS if number in (16, 29, 72, 25, 41, 198) else SECONDS[:3]
            for second in seconds:
                verdict = interpret(program, number, ARCHITECTURES[machine], (first, second))
                assert verdict == judged(rules, names.get(number, ""), first, second), (number, first, second)


@given(
    st.sampled_from(MACHINES),
    st.sampled_from(list(TABLES)),
    st.integers(0, 2**32 - 1) | st.integers(0, 512),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1) | st.sampled_from(SECONDS),
)
def test_any_call_gets_the_verdict_of_the_table(
    machine: str, table: str, number: int, first: int, second: int
) -> None:
    names = {value: name for name, value in NUMBERS[machine].items()}
    program = seccomp.program(TABLES[table], machine)
    verdict = interpret(program, number, ARCHITECTURES[machine], (first, second))
    if machine == "x86_64" and number >= 0x40000000 and number != NO_CALL:
        assert verdict == seccomp.KILL
    else:
        assert verdict == judged(TABLES[table], names.get(number, ""), first, second)


@pytest.mark.parametrize("table", TABLES)
def test_no_call_is_looked_for_long(table: str) -> None:
    """Each call of a command goes through the filter, and each number once when it is installed."""
    program = seccomp.program(TABLES[table], "x86_64")
    code = list(struct.iter_unpack("<HBBI", program))
    longest = max(steps(code, number) for number in range(512) if number not in NUMBERS["x86_64"].values())
    assert longest <= 16
    assert len(code) < 700


def steps(code: list[tuple[int, int, int, int]], number: int) -> int:
    """Return how many instructions decide about a call."""
    at, count, accumulator = 0, 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at, count = at + 1, count + 1
        if operation == seccomp.RETURN:
            return count
        if operation == seccomp.LOAD:
            accumulator = ARCHITECTURES["x86_64"] if operand == 4 else number
        elif operation == seccomp.JUMP:
            at += operand
        else:
            equal = operation == seccomp.JUMP_EQUAL
            holds = accumulator == operand if equal else accumulator >= operand
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("architecture", [I386, 0x40000028, 0, *ARCHITECTURES.values()])
def test_foreign_calls_kill(machine: str, architecture: int) -> None:
    program = seccomp.program(RESTRICTED, machine)
    verdict = interpret(program, 63, architecture, ())  # `uname` and `read`
    assert verdict == (seccomp.ALLOW if architecture == ARCHITECTURES[machine] else seccomp.KILL)


def test_the_tables_hold_the_calls_of_the_contract() -> None:
    every = {name for name, condition, _ in COMMON if condition in (ALWAYS, ABSENT)}
    always = {name for name, condition, _ in RESTRICTED if condition in (ALWAYS, ABSENT)}
    assert always - every | (always & RINGS) == {
        *("ptrace", "process_vm_readv", "process_vm_writev"),
        *("io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("connect", "accept", "accept4", "bind", "listen", "getpeername", "getsockname", "shutdown"),
        *("sendto", "sendmmsg", "recvmmsg", "getsockopt", "setsockopt"),
    }
    always = {name for name, condition, _ in PROXY_ROUTED if condition in (ALWAYS, ABSENT)}
    assert always - every | (always & RINGS) == {
        *("ptrace", "process_vm_readv", "process_vm_writev"),
        *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    }


def test_programs_may_be_traced_where_the_network_is_open() -> None:
    assert {"ptrace", "process_vm_readv", "pidfd_getfd", "connect"}.isdisjoint(name for name, *_ in OPEN)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_rule_for_a_call_without_a_number_is_an_error(machine: str) -> None:
    with pytest.raises(KeyError, match="no_such_call"):
        seccomp.program([("no_such_call", ALWAYS, ())], machine)


def test_no_filter_has_no_rules() -> None:
    assert seccomp.rules_of(FILTER_NONE) == ()
    assert seccomp.rules_of(FILTER_OPEN) == OPEN


def test_without_namespaces_every_filter_stands_in_for_them() -> None:
    for name in (FILTER_NONE, FILTER_OPEN, FILTER_RESTRICTED):
        rules = seccomp.rules_of(name, namespaces=False)
        assert set(rules) >= {*seccomp.rules_of(name), *COMMON, *WITHOUT_NAMESPACES}
        # What is decided by it is decided for good.
        assert rules[-1][1] == REQUEST_OUTSIDE


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
    outcome = roots.call(roots.plan(), lambda: dict(attempts(AF_UNIX, pairs)), user=user)
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
    assert roots.call(roots.plan(), payload).value == expected


def test_the_proxy_filter_leaves_internet_sockets_only() -> None:
    def payload() -> object:
        found = [dict(attempts(domain, False))["stream"] for domain in (AF_UNIX, AF_INET, AF_INET6)]
        return found, dict(attempts(AF_UNIX, True))["stream"]

    outcome = roots.call(roots.plan(syscall_filter=FILTER_PROXY_ROUTED), payload)
    assert outcome.value == ([errno.EPERM, 0, 0], 0)


@pytest.mark.parametrize(
    ("chosen", "mode"), [(FILTER_NONE, "0"), (FILTER_OPEN, "2"), (FILTER_RESTRICTED, "2")]
)
def test_a_filter_is_there_when_the_plan_asks_for_one(chosen: str, mode: str) -> None:
    outcome = roots.run(roots.plan(syscall_filter=chosen), "grep Seccomp: /proc/self/status")
    assert outcome.out.split() == ["Seccomp:", mode]
