"""Section by section: what the rules resolve to, and which decides."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy.policy import (
    BY_DEFAULT,
    BY_METADATA,
    BY_PATTERN,
    BY_PLATFORM,
    BY_RULE,
    UNRESTRICTED,
    Policy,
    file_policy,
    process_policy,
)
from tests.sandbox.policies import READ_ONLY, WORKSPACE, Rules, context, policy
from tests.support.fake_host import FakeHost

HOST = FakeHost({"/ws": "dir", "/tmp": "dir", "/real/x": "dir", "/top": "-> real", "/t": "dir"}, b"/t")


def said(resolved: Policy, path: bytes) -> tuple[str, str]:
    decision = resolved.access(path)
    return decision.access, decision.why


@pytest.mark.parametrize(
    ("rules", "path", "access"),
    [
        ((), "/x", "deny"),
        ((("/a", "read"),), "/a", "read"),
        ((("/a", "read"),), "/a/b/c", "read"),
        ((("/a", "read"),), "/ab", "deny"),
        ((("/a", "read"), ("/a/b", "write")), "/a/b/c", "write"),
        ((("/a/b", "write"), ("/a", "deny")), "/a/b/c", "write"),
        ((("/a", "write"), ("/a/b", "deny"), ("/a/b/c", "write")), "/a/b/d", "deny"),
        ((("/a", "read"), ("/a", "write")), "/a", "write"),
        ((("/a", "write"), ("/a", "read")), "/a", "write"),
        ((("/a", "write"), ("/a", "deny")), "/a", "deny"),
        ((("root", "read"), ("/a", "deny")), "/a/b", "deny"),
        ((("root", "read"), ("unknown", "write")), "/a", "read"),
        ((("minimal", "deny"), ("root", "read")), "/usr/bin", "read"),
    ],
)
def test_the_deepest_rule_decides_and_deny_goes_before_write_before_read(
    rules: Rules, path: str, access: str
) -> None:
    assert policy(HOST, *rules).access(path.encode()).access == access


def test_a_decision_names_what_decided_it() -> None:
    resolved = policy(HOST, ("/a", "write"), ("minimal", "read"), ("glob:/a/*.x", "deny"))
    assert said(resolved, b"/a/b") == ("write", BY_RULE)
    assert said(resolved, b"/a/.git/x") == ("read", BY_METADATA)
    assert said(resolved, b"/a/b.x/c") == ("deny", BY_PATTERN)
    assert said(resolved, b"/usr/bin/x") == ("read", BY_PLATFORM)
    assert said(resolved, b"/b") == ("deny", BY_DEFAULT)
    rule = resolved.access(b"/a/b").rule
    assert rule is not None
    assert rule.path == b"/a"


@pytest.mark.parametrize(
    ("rules", "full"),
    [
        ((("root", "read"),), True),
        ((("root", "write"), ("/x", "read")), True),
        ((("/", "read"),), False),
        ((("root", "read"), ("/x", "deny")), False),
        ((("root", "read"), ("glob:*.x", "deny")), False),
        ((("root", "deny"),), False),
        ((), False),
    ],
)
def test_everything_is_readable_with_the_root_and_without_any_denial(rules: Rules, full: bool) -> None:
    assert policy(HOST, *rules).full_read is full


def test_nothing_is_withheld_under_full_write_access() -> None:
    resolved = policy(HOST, ("root", "write"), ("/x", "write"))
    assert resolved.full_write
    assert said(resolved, b"/ws/.git/x") == ("write", UNRESTRICTED)
    for profile in ({"type": "disabled"}, {"type": "external", "network": "restricted"}):
        free = FileSystemSandboxContext(PermissionProfile.from_json(profile))
        assert process_policy(free, HOST, b"/").full_write


def test_a_narrowed_root_protects_its_metadata_names_too() -> None:
    resolved = policy(HOST, ("root", "write"), ("/x", "read"))
    assert not resolved.full_write
    assert said(resolved, b"/.git/x") == ("read", BY_METADATA)
    assert said(resolved, b"/a/.git/x") == ("write", BY_RULE)


@pytest.mark.parametrize("name", [".git", ".agents", ".codex"])
def test_metadata_names_are_protected_at_the_top_of_writable_paths_only(name: str) -> None:
    resolved = policy(HOST, ("root", "read"), ("/ws", "write"), ("/ws/in", "write"))
    assert said(resolved, f"/ws/{name}".encode()) == ("read", BY_METADATA)
    assert said(resolved, f"/ws/{name}/a/b".encode()) == ("read", BY_METADATA)
    assert said(resolved, f"/ws/in/{name}".encode()) == ("read", BY_METADATA)
    assert said(resolved, f"/ws/sub/{name}".encode()) == ("write", BY_RULE)
    assert said(resolved, f"/ws/{name}x".encode()) == ("write", BY_RULE)


def test_a_write_rule_for_a_metadata_name_or_below_it_counts() -> None:
    resolved = policy(HOST, ("/ws", "write"), ("/ws/.git", "write"), ("/ws/.codex/log", "write"))
    assert said(resolved, b"/ws/.git/config") == ("write", BY_RULE)
    assert said(resolved, b"/ws/.codex/log/x") == ("write", BY_RULE)
    assert said(resolved, b"/ws/.codex/config") == ("read", BY_METADATA)
    assert said(resolved, b"/ws/.git/.git/config") == ("read", BY_METADATA)


def test_the_workspace_preset() -> None:
    resolved = policy(HOST, *WORKSPACE)
    assert resolved.full_read
    assert not resolved.network_enabled
    writable = {path for path, rule in resolved.rules.items() if rule.access == "write"}
    assert writable == {b"/t", b"/tmp", b"/ws"}
    assert [resolved.access(path).access for path in (b"/ws/a", b"/ws/.git", b"/tmp/a", b"/etc")] == [
        *("write", "read", "write", "read"),
    ]


def test_the_read_only_preset() -> None:
    resolved = policy(HOST, *READ_ONLY)
    assert (resolved.full_read, resolved.full_write, list(resolved.rules)) == (True, False, [b"/"])


def test_project_roots_are_the_workspace_roots_or_else_the_directory() -> None:
    for for_files in (False, True):
        rules = (("project_roots", "write"), ("project_roots/sub", "read"))
        one = policy(HOST, *rules, cwd="/ws", for_files=for_files)
        assert set(one.rules) == {b"/ws", b"/ws/sub"}
        two = policy(HOST, *rules, cwd="/ws", roots=("/o", "/p"), for_files=for_files)
        assert set(two.rules) == {b"/o", b"/o/sub", b"/p", b"/p/sub"}
        none = policy(HOST, *rules, cwd=None, for_files=for_files)
        assert set(none.rules) == {b"/fallback", b"/fallback/sub"}


@pytest.mark.parametrize(
    ("subpath", "path"),
    [("a/../b", b"/ws/b"), ("./a//b/", b"/ws/a/b"), ("..", b"/"), ("/abs", b"/abs"), ("", b"/ws")],
)
def test_a_subpath_is_tidied(subpath: str, path: bytes) -> None:
    assert set(policy(HOST, (f"project_roots/{subpath}", "read")).rules) == {path}


def test_a_subpath_that_cannot_exist_stands_for_nothing() -> None:
    assert policy(HOST, ("project_roots/a\0b", "write")).rules == {}


@pytest.mark.parametrize(
    ("tmpdir", "paths"),
    [
        (None, set()),
        (b"", set()),
        (b"relative", set()),
        (b"/", set()),
        (b"/..", set()),
        (b"/t/", {b"/t"}),
        (b"//t/./x", {b"/t/x"}),
    ],
)
def test_the_temporary_folder_is_what_the_environment_says(tmpdir: bytes | None, paths: set[bytes]) -> None:
    assert set(policy(FakeHost({}, tmpdir), ("tmpdir", "write")).rules) == paths


def test_slash_tmp_counts_if_it_is_a_directory() -> None:
    assert set(policy(FakeHost({"/tmp": "dir"}), ("slash_tmp", "write")).rules) == {b"/tmp"}
    assert policy(FakeHost({"/tmp": b""}), ("slash_tmp", "write")).rules == {}
    assert policy(FakeHost({}), ("slash_tmp", "write")).rules == {}
    linked = FakeHost({"/tmp": "-> private/tmp", "/private/tmp": "dir"})
    assert set(policy(linked, ("slash_tmp", "write")).rules) == {b"/private/tmp"}


def test_only_a_link_that_is_the_first_name_is_followed() -> None:
    host = FakeHost({"/real/a/deep": "-> /etc", "/top": "-> /real/a", "/nowhere": "-> gone"})
    resolved = policy(host, ("/top/x", "write"), ("/real/a/deep", "read"), ("/nowhere/x", "read"))
    assert set(resolved.rules) == {b"/real/a/x", b"/real/a/deep", b"/nowhere/x"}
    assert resolved.rules[b"/real/a/x"].spellings == (b"/top/x",)
    assert resolved.access(b"/top/x/y").access == "write"


def test_two_names_of_one_path_are_one_rule() -> None:
    resolved = policy(HOST, ("/top/x", "read"), ("/real/x", "write"))
    assert set(resolved.rules) == {b"/real/x"}
    assert resolved.rules[b"/real/x"].access == "write"
    assert resolved.rules[b"/real/x"].spellings == (b"/top/x", b"/real/x")


def test_platform_folders_are_readable_where_nothing_else_is_said() -> None:
    host = FakeHost({"/usr/lib": "dir", "/lib": "-> usr/lib", "/etc": "dir"})
    resolved = policy(host, ("minimal", "read"), ("/etc/secret", "deny"), ("/usr", "deny"))
    assert said(resolved, b"/etc/hosts") == ("read", BY_PLATFORM)
    assert said(resolved, b"/etc/secret") == ("deny", BY_RULE)
    assert said(resolved, b"/lib/x") == ("deny", BY_RULE)
    assert said(policy(host, ("minimal", "read"), ("root", "deny")), b"/etc/x") == ("read", BY_PLATFORM)
    assert said(policy(host, ("minimal", "deny")), b"/etc/x") == ("deny", BY_DEFAULT)


def test_file_requests_gain_platform_folders_and_lose_the_network() -> None:
    resolved = policy(HOST, ("/ws", "write"), for_files=True, network="enabled")
    assert (resolved.minimal, resolved.network_enabled) == (True, False)
    assert said(resolved, b"/usr/bin/x") == ("read", BY_PLATFORM)
    assert policy(HOST, *READ_ONLY, for_files=True).minimal is False
    process = policy(HOST, ("/ws", "write"), network="enabled")
    assert (process.minimal, process.network_enabled) == (False, True)


@pytest.mark.parametrize(
    ("patterns", "more", "expected"),
    [
        (("*.env",), {}, (b"/ws/*.env",)),
        (("/b/*", "/a/*", "/b/*"), {}, (b"/a/*", b"/b/*")),
        (("*.x",), {"cwd": "/w[s]"}, (b"/w\\[s\\]/*.x",)),
        (("codex-project-roots://**/x",), {"roots": ("/o", "/p*")}, (b"/o/**/x", b"/p\\*/**/x")),
        (("codex-project-roots:///x",), {}, (b"/ws/x",)),
        (("*.x",), {"cwd": None}, (b"/fallback/*.x",)),
        (("/top/*.x",), {}, (b"/real/*.x", b"/top/*.x")),
    ],
)
def test_deny_patterns_are_made_absolute_sorted_and_unique(
    patterns: tuple[str, ...], more: dict[str, Any], expected: tuple[bytes, ...]
) -> None:
    rules = tuple((f"glob:{pattern}", "deny") for pattern in patterns)
    assert policy(HOST, *rules, **more).globs == expected


def test_patterns_that_deny_nothing_are_left_out() -> None:
    assert policy(HOST, ("glob:*.x", "read"), ("glob:*.y", "write"), ("glob:", "deny")).globs == ()


def test_a_pattern_denies_what_it_matches_and_all_below_but_what_a_deeper_rule_grants() -> None:
    resolved = policy(HOST, ("/ws", "write"), ("glob:out*", "deny"), ("/ws/out/keep", "read"))
    assert said(resolved, b"/ws/out") == ("deny", BY_PATTERN)
    assert said(resolved, b"/ws/out2/a") == ("deny", BY_PATTERN)
    assert said(resolved, b"/ws/out/keep/a") == ("read", BY_RULE)
    assert said(resolved, b"/ws/sub/out") == ("write", BY_RULE)


def test_a_pattern_goes_before_a_rule_for_the_same_path() -> None:
    assert said(policy(HOST, ("/ws/out", "write"), ("glob:out", "deny")), b"/ws/out/a") == (
        "deny",
        BY_PATTERN,
    )


def test_a_pattern_that_is_not_well_formed_is_refused() -> None:
    with pytest.raises(PlanRefused, match=r"invalid deny pattern /ws/\{a: a `\{` is not closed"):
        policy(HOST, ("glob:{a", "deny"))


def test_a_policy_with_patterns_cannot_be_kept() -> None:
    assert policy(HOST, *WORKSPACE).facts.cacheable
    assert not policy(HOST, ("root", "read"), ("glob:*.x", "deny")).facts.cacheable


def test_the_facts_of_a_policy_are_the_links_and_the_folder_for_temporary_files() -> None:
    host = FakeHost({"/tmp": "dir", "/real": "dir", "/top": "-> real"})
    resolved = policy(host, ("/top/x", "read"), ("slash_tmp", "write"))
    assert set(resolved.facts.stamps) == {b"/", b"/top", b"/real", b"/tmp"}
    assert resolved.facts.hold(host)
    host.put("/top", "-> elsewhere")
    assert not resolved.facts.hold(host)


def test_the_directory_of_the_context_goes_before_the_fallback() -> None:
    assert file_policy(context(("project_roots", "read"), cwd="/c"), HOST, b"/f").cwd == b"/c"
    assert file_policy(context(("root", "read"), cwd=None), HOST, b"/f").cwd == b"/f"
    assert process_policy(context(("root", "read"), cwd=None), HOST, b"/p").cwd == b"/p"
