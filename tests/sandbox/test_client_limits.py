"""Limits over plans: what comes out allows what both allow, and never more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.client_limits import Limits, lay
from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_OPEN,
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    NETWORK_HOST,
    NETWORK_NONE,
    NETWORK_PROXY,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.plan_record import decode_plan, encode_plan
from execserver.sandbox.policy.facts import Facts
from tests.sandbox.policies import Rules, plan
from tests.sandbox.root_model import RANK, View
from tests.sandbox.test_plan_properties import all_rules, hosts, paths, planned, real_paths
from tests.support.fake_host import FakeHost

_limits = st.one_of(st.just(()), st.lists(st.one_of(paths, paths, st.just("/")), max_size=3)).map(
    lambda roots: tuple(root.encode() for root in roots)
)
_workspaces = st.lists(paths, max_size=2).map(tuple)
WORKSPACE = (("root", "read"), ("/ws", "write"))
DIRECTORY = 0o040000


def is_below(path: str, roots: tuple[bytes, ...], host: FakeHost) -> bool:
    """Tell whether a real path lies in a folder of the limits that is reached without symlinks."""
    real = set(real_paths(host))
    folders = [
        root.decode()
        for root in roots
        if root == b"/" or (root.decode() in real and host.nodes[root][0] == DIRECTORY)
    ]
    return any((path + "/").startswith(folder.rstrip("/") + "/") for folder in folders)


@given(hosts(), all_rules, _workspaces, st.booleans(), _limits)
def test_every_place_can_be_used_as_both_say(
    host: FakeHost, rules: Rules, workspaces: tuple[str, ...], for_files: bool, roots: tuple[bytes, ...]
) -> None:
    made = planned(host, rules, workspaces, for_files)
    if made is None:
        return
    laid = lay(Limits(roots), made, host)
    before, after = View(made, host), View(laid, host)
    for path in real_paths(host):
        most = RANK["write" if is_below(path, roots, host) else "read"]
        assert RANK[after.access(path)] == min(RANK[before.access(path)], most), path
    assert decode_plan(encode_plan(laid)) == laid
    assert laid.root != ROOT_HOST
    assert laid.globs == made.globs
    assert set(made.denied) == set(laid.denied)


@given(hosts(), all_rules, _workspaces, _limits, _limits)
def test_two_limits_give_what_all_three_allow(
    host: FakeHost,
    rules: Rules,
    workspaces: tuple[str, ...],
    one: tuple[bytes, ...],
    other: tuple[bytes, ...],
) -> None:
    made = planned(host, rules, workspaces, False)
    if made is None:
        return
    both = View(lay(Limits(other), lay(Limits(one), made, host), host), host)
    for path in real_paths(host):
        for roots in (one, other):
            assert RANK[both.access(path)] <= RANK[View(lay(Limits(roots), made, host), host).access(path)]


@given(hosts(), all_rules, _workspaces, _limits)
def test_rules_against_patterns_are_not_added(
    host: FakeHost, rules: Rules, workspaces: tuple[str, ...], roots: tuple[bytes, ...]
) -> None:
    """In a file worker a rule below a deny pattern's match counts more than the pattern."""
    made = planned(host, rules, workspaces, True)
    if made is None or not made.globs or made.root == ROOT_HOST:
        return
    laid = lay(Limits(roots), made, host)
    assert {*laid.writable, *laid.readable, *laid.read_only} == {
        *made.writable,
        *made.readable,
        *made.read_only,
    }


def test_a_root_that_a_symlink_leads_to_grants_nothing() -> None:
    """Whoever may write to /ws makes a link there, and narrows its token from /ws to that link."""
    host = FakeHost({"/ws/link": "-> /etc", "/etc": "dir", "/ws/sub/link": "-> /", "/ws/real": "dir"})
    whole = SandboxPlan(ROOT_HOST, network=NETWORK_HOST, syscall_filter=FILTER_NONE)
    for root in (
        b"/ws/link",
        b"/ws/sub/link",
        b"/ws/sub/link/etc",
        b"/ws/missing",
        b"/ws/../etc",
        b"/ws//real",
    ):
        laid = lay(Limits((root,)), whole, host)
        assert [mount.path for mount in laid.mounts if mount.kind == WRITE] == [], root
        assert laid.root == ROOT_READ_ONLY
        assert laid.writable == ()


def test_a_plan_is_made_anew_when_a_root_becomes_a_symlink() -> None:
    host = FakeHost({"/ws/a": "dir", "/etc": "dir"})
    facts = Facts()
    laid = lay(Limits((b"/ws/a",)), SandboxPlan(ROOT_HOST), facts.noting(host))
    assert laid.mounts == (Mount(WRITE, b"/ws/a", b"/ws/a", host.identity(b"/ws/a")),)
    assert facts.hold(host)
    host.remove("/ws/a")
    host.put("/ws/a", "-> /etc")
    assert not facts.hold(host)


def test_what_is_protected_in_a_root_stays_protected() -> None:
    host = FakeHost({"/ws/a/.git": "dir", "/ws/b": "dir"})
    made = plan(host, ("root", "read"), ("/ws/a", "write"), ("/ws/b", "write"))
    laid = lay(Limits((b"/ws/a",)), made, host)
    view = View(laid, host)
    accesses = {path: view.access(path) for path in ("/ws", "/ws/a", "/ws/a/.git", "/ws/b")}
    assert accesses == {"/ws": "read", "/ws/a": "write", "/ws/a/.git": "read", "/ws/b": "read"}
    assert {missing.path for missing in laid.missing} == {b"/ws/a/.codex", b"/ws/a/.agents"}
    assert laid.read_only == (b"/ws/a/.agents", b"/ws/a/.codex", b"/ws/a/.git")


def test_the_sandbox_roots_own_folders_are_granted_to_nobody() -> None:
    host = FakeHost({"/dev/shm": "dir", "/proc/sys": "dir"})
    laid = lay(Limits((b"/dev/shm", b"/proc/sys", b"/dev")), SandboxPlan(ROOT_HOST), host)
    assert laid.mounts == ()


@pytest.mark.parametrize(
    ("network", "used", "limits", "expected"),
    [
        (NETWORK_HOST, FILTER_NONE, Limits(), (NETWORK_HOST, FILTER_OPEN)),
        (NETWORK_HOST, FILTER_NONE, Limits(network=False), (NETWORK_NONE, FILTER_RESTRICTED)),
        (NETWORK_HOST, FILTER_RESTRICTED, Limits((b"/",)), (NETWORK_NONE, FILTER_RESTRICTED)),
        (NETWORK_PROXY, FILTER_PROXY_ROUTED, Limits(()), (NETWORK_PROXY, FILTER_PROXY_ROUTED)),
        (NETWORK_PROXY, FILTER_PROXY_ROUTED, Limits(network=False), (NETWORK_NONE, FILTER_RESTRICTED)),
    ],
)
def test_a_plan_without_a_root_gets_one_and_no_more_network(
    network: str, used: str, limits: Limits, expected: tuple[str, str]
) -> None:
    laid = lay(limits, SandboxPlan(ROOT_HOST, network=network, syscall_filter=used), FakeHost())
    assert (laid.network, laid.syscall_filter) == expected
    assert laid.root == (ROOT_READ_ONLY if limits.roots == () else ROOT_WRITABLE)


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_EMPTY, ROOT_WRITABLE])
def test_the_network_is_taken_from_any_plan(root: str) -> None:
    made = SandboxPlan(root, network=NETWORK_HOST, syscall_filter=FILTER_OPEN)
    laid = lay(Limits(network=False), made, FakeHost())
    assert (laid.root, laid.network, laid.syscall_filter) == (root, NETWORK_NONE, FILTER_RESTRICTED)
    assert lay(Limits(), made, FakeHost()) == made


def test_a_narrow_plan_shows_no_more_than_before() -> None:
    host = FakeHost({"/ws/a": "dir", "/other": "dir", "/usr/lib": "dir"})
    made = plan(host, ("/ws", "write"), ("minimal", "read"))
    view = View(lay(Limits((b"/ws/a", b"/other")), made, host), host)
    assert [view.access(path) for path in ("/ws", "/ws/a", "/other")] == ["read", "write", "nothing"]
    assert [mount.kind for mount in view.plan.mounts if mount.path == b"/ws"] == [READ]


def test_limits_are_values() -> None:
    assert Limits((b"/a",)) == Limits((b"/a",))
    assert hash(Limits((b"/a",), False)) == hash(Limits((b"/a",), False))
    assert Limits() != Limits(())
    assert Limits() != Limits(network=False)
