"""Which mounts a policy becomes: the presets, rules inside of rules, what is missing, and git directories."""

from __future__ import annotations

import pytest

from execserver.sandbox import plan as words
from execserver.sandbox.plan import Mount, SandboxPlan
from execserver.sandbox.policy.planner import plan_for_process
from tests.sandbox.planned import ROOT_READ, lines, missing, refusal, write_only
from tests.sandbox.policies import READ_ONLY, WORKSPACE, Rules, plan, policy
from tests.support.fake_host import FakeHost

# --- the root and the presets ------------------------------------------------------------------------------


def test_the_read_only_preset_needs_no_mount() -> None:
    made = plan(FakeHost({"/ws": "dir"}), *READ_ONLY)
    assert made == SandboxPlan(words.ROOT_READ_ONLY, readable=(b"/",))
    assert (made.network, made.syscall_filter) == (words.NETWORK_NONE, words.FILTER_RESTRICTED)


def test_the_workspace_preset_protects_metadata_names_whether_they_are_there_or_not() -> None:
    host = FakeHost({"/ws/.git": "dir", "/tmp/.codex": b"", "/t": "dir"}, b"/t")
    made = plan(host, *WORKSPACE)
    assert made.root == words.ROOT_READ_ONLY
    assert lines(made) == ["write /t", "write /tmp", "write /ws", "read /tmp/.codex", "read /ws/.git"]
    assert missing(made) == [
        *("/t/.agents", "/t/.codex", "/t/.git", "/tmp/.agents", "/tmp/.git", "/ws/.agents", "/ws/.codex"),
    ]
    assert all(item.metadata and item.directory for item in made.missing)
    assert made.missing[0].parent == host.identity(b"/t")
    assert made.writable == (b"/t", b"/tmp", b"/ws")
    assert set(made.read_only) == {*(item.path for item in made.missing), b"/tmp/.codex", b"/ws/.git"}
    assert made.mounts[2] == Mount(words.WRITE, b"/ws", b"/ws", host.identity(b"/ws"))


def test_full_write_access_needs_no_view() -> None:
    host = FakeHost()
    free = plan(host, ("root", "write"), network="enabled")
    assert free == SandboxPlan(words.ROOT_HOST, network=words.NETWORK_HOST, syscall_filter=words.FILTER_NONE)
    quiet = plan(host, ("root", "write"))
    assert (quiet.root, quiet.network) == (words.ROOT_HOST, words.NETWORK_HOST)
    assert quiet.syscall_filter == words.FILTER_RESTRICTED


def test_full_write_access_with_a_managed_network_is_a_view_of_the_network() -> None:
    host = FakeHost()
    made = plan_for_process(policy(host, ("root", "write"), network="enabled"), host, managed_network=True)
    assert (made.root, made.network) == (words.ROOT_HOST, words.NETWORK_PROXY)
    assert made.syscall_filter == words.FILTER_PROXY_ROUTED


def test_full_write_access_but_for_a_pattern_is_a_view() -> None:
    made = plan(FakeHost({"/ws/x.env": b""}), ("root", "write"), ("glob:*.env", "deny"))
    assert made.root == words.ROOT_WRITABLE
    assert "hidden-file /ws/x.env" in lines(made)


def test_the_network_is_the_profiles_for_commands_and_none_for_file_workers() -> None:
    host = FakeHost()
    open_ = plan(host, ROOT_READ, network="enabled")
    assert (open_.network, open_.syscall_filter) == (words.NETWORK_HOST, words.FILTER_OPEN)
    worker = plan(host, ROOT_READ, network="enabled", for_files=True)
    assert (worker.network, worker.syscall_filter) == (words.NETWORK_NONE, words.FILTER_RESTRICTED)


def test_without_the_root_only_what_is_granted_is_there() -> None:
    host = FakeHost({"/a/b": "dir", "/c": b"", "/d": "dir"})
    made = plan(host, ("/a/b", "read"), ("/c", "read"), ("/gone", "read"))
    assert made.root == words.ROOT_EMPTY
    assert lines(made) == ["read /c", "read /a/b"]
    assert made.readable == (b"/a/b", b"/c")
    assert plan(host).mounts == ()


def test_a_denied_root_means_that_nothing_is_granted() -> None:
    host = FakeHost({"/a": "dir"})
    made = plan(host, ("root", "read"), ("root", "deny"), ("/a", "read"))
    assert (made.root, lines(made), made.denied) == (words.ROOT_EMPTY, ["read /a"], ())


def test_platform_folders_come_with_the_links_to_them() -> None:
    host = FakeHost({"/usr/bin": "dir", "/bin": "-> usr/bin", "/etc": "dir", "/ws": "dir"})
    made = plan(host, ("/ws", "read"), ("minimal", "read"))
    assert lines(made) == ["link /bin", "read /etc", "read /usr", "read /ws"]
    assert made.mounts[0].source == b"usr/bin"
    assert made.readable == (b"/etc", b"/usr", b"/ws")
    assert lines(plan(host, ROOT_READ, ("minimal", "read"))) == []


def test_a_writable_root_directory_is_the_root_of_the_view() -> None:
    host = FakeHost({"/.git": "dir", "/x/y": "dir", "/tmp": "dir"})
    made = plan(host, ("root", "write"), ("/x/y", "read"))
    assert made.root == words.ROOT_WRITABLE
    assert lines(made) == ["read /.git", "write /x", "read /x/y"]
    assert missing(made) == ["/.agents", "/.codex"]


def test_the_workspace_may_be_the_root_directory() -> None:
    made = plan(FakeHost({"/tmp": "dir"}), *WORKSPACE, cwd="/")
    assert made.root == words.ROOT_WRITABLE
    assert {"/.git", "/.agents", "/.codex"} <= set(missing(made))
    assert lines(made) == ["write /tmp"]


# --- nesting -----------------------------------------------------------------------------------------------


def test_what_is_denied_below_a_writable_root_is_masked_and_what_is_granted_again_is_bound_again() -> None:
    host = FakeHost({"/repo/a/b/c": "dir", "/repo/f": b""})
    rules: Rules = (ROOT_READ, ("/repo", "write"), ("/repo/a", "deny"), ("/repo/a/b", "write"))
    made = write_only(plan(host, *rules, ("/repo/a/b/c", "deny"), ("/repo/f", "deny")))
    assert lines(made) == [
        *("write /repo", "passage /repo/a", "hidden-file /repo/f", "write /repo/a/b"),
        "hidden-directory /repo/a/b/c",
    ]
    assert made.mounts[1].identity == host.identity(b"/repo/a")


@pytest.mark.parametrize("child", ["dir", b"file"])
def test_a_writable_child_is_reopened_under_a_read_only_or_a_denied_parent(child: str | bytes) -> None:
    host = FakeHost({"/repo/a/b": child})
    read_only = plan(host, ROOT_READ, ("/repo", "write"), ("/repo/a", "read"), ("/repo/a/b", "write"))
    assert lines(write_only(read_only)) == ["write /repo", "read /repo/a", "write /repo/a/b"]
    denied = plan(host, ROOT_READ, ("/repo/a", "deny"), ("/repo/a/b", "write"))
    assert lines(write_only(denied)) == ["passage /repo/a", "write /repo/a/b"]


def test_a_readable_child_is_reopened_under_a_denied_parent() -> None:
    made = plan(FakeHost({"/x/a/b": "dir"}), ROOT_READ, ("/x", "deny"), ("/x/a/b", "read"))
    assert lines(made) == ["passage /x", "read /x/a/b"]


def test_below_the_readable_root_a_denied_path_is_hidden() -> None:
    made = plan(FakeHost({"/x/secret": b"", "/y": "dir"}), ROOT_READ, ("/x/secret", "deny"), ("/y", "deny"))
    assert lines(made) == ["hidden-directory /y", "hidden-file /x/secret"]
    assert made.denied == (b"/x/secret", b"/y")


def test_what_is_not_shown_needs_no_mask() -> None:
    made = plan(FakeHost({"/x/a": "dir", "/y": "dir"}), ("/y", "read"), ("/x", "deny"), ("/x/a", "deny"))
    assert lines(made) == ["read /y"]


def test_a_denied_working_directory_is_hidden_like_any_other() -> None:
    made = plan(FakeHost({"/ws/sub": "dir"}), ROOT_READ, ("/ws", "deny"), cwd="/ws/sub")
    assert lines(made) == ["hidden-directory /ws"]


def test_a_folder_for_temporary_files_inside_the_workspace_is_a_root_of_its_own() -> None:
    host = FakeHost({"/ws/t": "dir"}, b"/ws/t")
    made = plan(host, ROOT_READ, ("project_roots", "write"), ("tmpdir", "write"))
    assert lines(made) == ["write /ws", "write /ws/t"]
    assert "/ws/t/.git" in missing(made)
    same = FakeHost({"/tmp/ws": "dir"}, b"/tmp/ws")
    made = plan(same, ROOT_READ, ("project_roots", "write"), ("tmpdir", "write"), cwd="/tmp/ws")
    assert lines(made) == ["write /tmp/ws"]


def test_directories_above_what_is_protected_cannot_be_renamed() -> None:
    host = FakeHost({"/ws/a/b/key": b"", "/tmp/x/repo": "dir"})
    made = plan(host, ROOT_READ, ("/ws", "write"), ("/ws/a/b/key", "deny"))
    assert lines(write_only(made)) == ["write /ws", "write /ws/a", "write /ws/a/b", "hidden-file /ws/a/b/key"]
    assert made.writable == (b"/ws",)
    nested = plan(host, ROOT_READ, ("/tmp", "write"), ("/tmp/x/repo", "write"))
    assert lines(nested) == ["write /tmp", "write /tmp/x", "write /tmp/x/repo"]


# --- what is missing ---------------------------------------------------------------------------------------


def test_missing_roots_are_left_out() -> None:
    made = plan(
        FakeHost({"/ws": "dir"}), ROOT_READ, ("/gone", "write"), ("/ws", "write"), ("/ws/new", "write")
    )
    assert lines(made) == ["write /ws"]
    assert made.writable == (b"/ws",)


def test_the_first_missing_name_of_a_protected_path_stays_missing() -> None:
    host = FakeHost({"/ws/a": "dir"})
    made = plan(host, ROOT_READ, ("/ws", "write"), ("/ws/a/b/c", "deny"), ("/ws/x", "read"))
    (below, top) = write_only(made).missing
    assert (below.path, below.directory, below.parent) == (b"/ws/a/b", False, host.identity(b"/ws/a"))
    assert (top.path, top.directory, top.parent) == (b"/ws/x", False, host.identity(b"/ws"))
    assert lines(made) == ["write /ws", "write /ws/a"]
    assert b"/ws/a/b" in made.denied
    assert b"/ws/x" in made.read_only


def test_a_missing_metadata_name_is_a_directory_even_for_a_rule_below_it() -> None:
    made = plan(FakeHost({"/ws": "dir"}), ("/ws", "write"), ("/ws/.git/hooks", "deny"))
    assert [(item.path, item.directory, item.metadata) for item in made.missing if b".git" in item.path] == [
        (b"/ws/.git", True, True)
    ]


def test_a_metadata_name_with_a_write_rule_may_be_made() -> None:
    made = plan(FakeHost({"/ws": "dir"}), ("/ws", "write"), ("/ws/.git", "write"))
    assert missing(made) == ["/ws/.agents", "/ws/.codex"]


def test_nothing_stands_in_for_what_is_missing_where_nobody_can_write() -> None:
    host = FakeHost({"/ws/ro": "dir"})
    made = plan(host, ROOT_READ, ("/x/y", "deny"), ("/ws", "write"), ("/ws/ro", "read"), ("/ws/ro/z", "deny"))
    assert all(item.metadata for item in made.missing)


def test_a_file_in_place_of_a_protected_directory_stays() -> None:
    made = plan(FakeHost({"/ws/f": b""}), ROOT_READ, ("/ws", "write"), ("/ws/f/x", "deny"))
    assert lines(made) == ["write /ws", "write /ws/f"]
    assert write_only(made).missing == ()


def test_metadata_names_in_a_repository_below_another_are_protected_as_well() -> None:
    made = plan(FakeHost({"/up/.git/HEAD": b"", "/up/ws": "dir"}), *WORKSPACE, cwd="/up/ws")
    assert "/up/ws/.git" in missing(made)


def test_a_writable_file_has_no_metadata_names() -> None:
    made = plan(FakeHost({"/a/f": b""}), ROOT_READ, ("/a/f", "write"))
    assert (lines(made), made.missing) == (["write /a/f"], ())


# --- the .git file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"gitdir: /main/git/wt\n", b"gitdir: ../git/wt", b"gitdir:/main/git/wt"])
def test_the_directory_that_a_git_file_names_is_read_only(content: bytes) -> None:
    host = FakeHost({"/main/ws/.git": content, "/main/git/wt/HEAD": b""})
    made = plan(host, ROOT_READ, ("/main", "write"), ("/main/ws", "write"))
    assert "read /main/git/wt" in lines(made)
    assert "write /main/git" in lines(made)
    assert b"/main/git/wt" in made.read_only


def test_a_git_directory_outside_grants_nothing() -> None:
    host = FakeHost({"/ws/.git": b"gitdir: /secret", "/secret": "dir"})
    assert lines(plan(host, ("/ws", "write"))) == ["write /ws", "read /ws/.git"]


def test_a_missing_git_directory_cannot_be_made() -> None:
    host = FakeHost({"/ws/.git": b"gitdir: /ws/git/x"})
    made = plan(host, ROOT_READ, ("/ws", "write"))
    assert [(item.path, item.directory, item.metadata) for item in made.missing if not item.metadata] == [
        (b"/ws/git", True, False)
    ]


@pytest.mark.parametrize(
    "content", [b"", b"gitdir:", b"x: /ws/a", b"gitdir: /ws", b"gitdir: ..", b"gitdir: /"]
)
def test_a_git_file_that_names_nothing_sensible_is_only_protected_itself(content: bytes) -> None:
    host = FakeHost({"/ws/.git": content, "/ws/a": "dir"})
    assert lines(plan(host, ROOT_READ, ("/ws", "write"))) == ["write /ws", "read /ws/.git"]


def test_a_git_directory_with_a_write_rule_stays_writable() -> None:
    host = FakeHost({"/ws/.git": b"gitdir: g", "/ws/g": "dir"})
    made = plan(host, ROOT_READ, ("/ws", "write"), ("/ws/g", "write"))
    assert "write /ws/g" in lines(made)


def test_a_git_file_whose_directory_crosses_a_writable_link_is_refused() -> None:
    host = FakeHost({"/ws/.git": b"gitdir: l/x", "/ws/l": "-> /other", "/other/x": "dir"})
    assert refusal(host, ROOT_READ, ("/ws", "write")) == (
        "cannot enforce sandbox read-only path /ws/l/x because it crosses writable symlink /ws/l"
    )
