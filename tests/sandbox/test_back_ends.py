from __future__ import annotations

import pytest

from execserver.sandbox.backends import selection
from execserver.sandbox.backends.bwrap import Bwrap
from execserver.sandbox.backends.report import (
    BUBBLEWRAP,
    LANDLOCK,
    MOUNTS_OLD,
    SECCOMP,
    USER_NAMESPACES,
    Check,
    Report,
)
from execserver.sandbox.backends.selection import Choice, Refusal, answer, choose, policies, summary
from execserver.sandbox.plan import FILTER_NONE, NETWORK_HOST, ROOT_HOST, ROOT_READ_ONLY, Mount, SandboxPlan

BWRAP = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), True, "0.8.0")
NO_USER = Check(USER_NAMESPACES, False, "", "user namespaces are switched off", "sysctl -w this=1")
NO_BWRAP = Check(BUBBLEWRAP, False, "", "there is no bwrap", "install it")
NO_LANDLOCK = Check(LANDLOCK, False, "", "the kernel has no Landlock", "newer")


def names(report: Report) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, plan in policies().items():
        choice = choose(plan, report)
        found[name] = choice.name if isinstance(choice, Choice) else None
    return found


def test_namespaces_of_our_own_serve_everything() -> None:
    report = Report(native=True, seccomp=True, bwrap=BWRAP, landlock_abi=7)
    assert set(names(report).values()) == {selection.NATIVE, selection.FILTER}


def test_bubblewrap_serves_what_it_can_where_namespaces_are_refused() -> None:
    found = names(
        Report(seccomp=True, bwrap=BWRAP, landlock_abi=7, checks=(NO_USER, Check(BUBBLEWRAP, True)))
    )
    assert found == {
        "read-only": selection.BUBBLEWRAP,
        "workspace-write": selection.BUBBLEWRAP,
        "narrow": selection.BUBBLEWRAP,
        "network-on": selection.BUBBLEWRAP,
        "managed-proxy": None,
        "full-write": selection.FILTER,
    }


def test_what_works_but_does_not_serve_is_named() -> None:
    works = (NO_USER, Check(BUBBLEWRAP, True))
    proxy = policies()["managed-proxy"]
    with_both = choose(proxy, Report(seccomp=True, bwrap=BWRAP, landlock_abi=7, checks=works))
    assert isinstance(with_both, Refusal)
    assert with_both.short == (
        "of what works here, bubblewrap does not serve: its networks cannot be joined; Landlock does not "
        "serve: its rules for connections name ports and no addresses, so any host could be the proxy"
    )
    joinable = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), False, joinable=True)
    chosen = choose(proxy, Report(seccomp=True, bwrap=joinable, landlock_abi=7, checks=works))
    assert isinstance(chosen, Choice)
    assert chosen.name == selection.BUBBLEWRAP
    with_none = choose(proxy, Report(seccomp=True, checks=(NO_USER, NO_BWRAP, NO_LANDLOCK)))
    assert isinstance(with_none, Refusal)
    assert with_none.short == "nothing works here"


def test_landlock_serves_only_what_it_says_exactly() -> None:
    found = names(Report(seccomp=True, landlock_abi=4, checks=(NO_USER, NO_BWRAP)))
    assert found == {
        "read-only": selection.LANDLOCK,
        "workspace-write": None,
        "narrow": None,
        "network-on": None,
        "managed-proxy": None,
        "full-write": selection.FILTER,
    }


def test_a_writable_root_without_exceptions_is_exact_for_landlock() -> None:
    plan = SandboxPlan(ROOT_READ_ONLY, (Mount("write", b"/w", b"/w"),), writable=(b"/w",))
    choice = choose(plan, Report(seccomp=True, landlock_abi=3))
    assert isinstance(choice, Choice)
    assert choice.name == selection.LANDLOCK


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_landlock_that_lets_files_be_cut_serves_nothing(version: int) -> None:
    choice = choose(policies()["read-only"], Report(seccomp=True, landlock_abi=version))
    assert isinstance(choice, Refusal)


def test_a_refusal_names_every_blocker_and_the_first_cure() -> None:
    choice = choose(policies()["narrow"], Report(seccomp=True, checks=(NO_USER, NO_BWRAP, NO_LANDLOCK)))
    assert isinstance(choice, Refusal)
    for check in (NO_USER, NO_BWRAP, NO_LANDLOCK):
        assert check.blocker in choice.why
    assert choice.cure == NO_USER.cure
    assert str(choice) == f"{choice.why}. What to do: {choice.cure}"


def test_without_filters_the_network_is_never_only_promised_to_be_off() -> None:
    no_filter = Check(SECCOMP, False, "", "the kernel has no filters", "another kernel")
    report = Report(native=True, bwrap=BWRAP, landlock_abi=7, checks=(no_filter,))
    assert set(names(report).values()) == {None}
    choice = choose(SandboxPlan(ROOT_HOST), report)
    assert isinstance(choice, Refusal)
    assert choice.why == f"the network cannot be withheld: {no_filter.blocker}"
    open_ = choose(policies()["network-on"], report)
    assert isinstance(open_, Refusal)
    assert open_.why == f"system calls cannot be withheld: {no_filter.blocker}"


def test_what_restricts_nothing_needs_nothing() -> None:
    choice = choose(SandboxPlan(ROOT_HOST, network=NETWORK_HOST, syscall_filter=FILTER_NONE), Report())
    assert isinstance(choice, Choice)
    assert choice.name == selection.NOTHING


def test_variants_of_namespaces_are_named() -> None:
    report = Report(native=True, seccomp=True, user_namespace=False, mounts=MOUNTS_OLD)
    shown = str(choose(policies()["read-only"], report))
    assert shown == "native (as root, without a user namespace, old mount calls)"


def test_the_answer_holds_report_and_policies() -> None:
    members = answer(Report(native=True, seccomp=True, kernel="6.1"))
    assert members["kernel"] == "6.1"
    rows = members["policies"]
    assert isinstance(rows, list)
    assert [row["name"] for row in rows] == list(policies())
    assert rows[0] == {
        "name": "read-only",
        "backEnd": "native",
        "detail": "",
        "blocker": None,
        "cure": None,
    }


def test_the_line_for_the_log_says_what_works() -> None:
    assert summary(Report(native=True, seccomp=True)) == "sandboxed requests are enforced by: native"
    partly = summary(Report(seccomp=True, landlock_abi=4, checks=(NO_USER, NO_BWRAP)))
    assert partly.startswith("only read-only sandboxes work here, by landlock (ABI 4): ")
    assert summary(Report(checks=(NO_USER,))).startswith("sandboxed requests are refused: ")


def test_with_shared_processes_only_landlock_serves_and_only_what_it_expresses() -> None:
    report = Report(native=True, seccomp=True, bwrap=BWRAP, landlock_abi=6)
    found = {name: choose(plan, report, shares_processes=True) for name, plan in policies().items()}
    names_of = {name: each.name for name, each in found.items() if isinstance(each, selection.Choice)}
    assert names_of == {"read-only": selection.LANDLOCK, "full-write": selection.FILTER}
    refused = found["workspace-write"]
    assert isinstance(refused, selection.Refusal)
    assert "it cannot keep parts of a writable folder read-only" in str(refused)
    assert "without `--linux-sandbox-pid-namespace inherit`" in refused.cure


@pytest.mark.parametrize("version", [0, 3, 5])
def test_processes_are_not_shared_where_signals_would_get_out(version: int) -> None:
    report = Report(native=True, seccomp=True, landlock_abi=version)
    refused = choose(policies()["read-only"], report, shares_processes=True)
    assert isinstance(refused, selection.Refusal)
    assert f"here is version {version}" in refused.why
