"""What a plan makes of the host's symlinks, of /dev and /proc, and how long its host facts hold."""

from __future__ import annotations

import pytest

from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy.facts import Facts
from tests.sandbox.planned import ROOT_READ, lines, missing, refusal
from tests.sandbox.policies import WORKSPACE, Rules, plan
from tests.support.fake_host import FakeHost

# --- links -------------------------------------------------------------------------------------------------


def test_a_writable_root_that_is_a_link_is_bound_where_it_leads_with_what_is_protected_below_it() -> None:
    host = FakeHost({"/x/link": "-> ../real/ws", "/real/ws/.git": "dir", "/real/ws/a": "dir"})
    made = plan(host, ROOT_READ, ("/x/link", "write"), ("/x/link/a", "deny"))
    assert lines(made) == ["write /real/ws", "read /real/ws/.git", "hidden-directory /real/ws/a"]
    assert missing(made) == ["/real/ws/.agents", "/real/ws/.codex"]
    narrow = plan(host, ("/x/link", "write"))
    assert lines(narrow) == ["write /real/ws", "link /x/link", "read /real/ws/.git"]
    assert narrow.mounts[1].source == b"../real/ws"


def test_a_denied_link_hides_what_it_leads_to() -> None:
    host = FakeHost({"/x/link": "-> /real/f", "/real/f": b""})
    assert lines(plan(host, ROOT_READ, ("/x/link", "deny"))) == ["hidden-file /real/f"]


def test_rules_that_meet_at_one_place_leave_the_least() -> None:
    host = FakeHost({"/x/link": "-> /real", "/real": "dir"})
    assert lines(plan(host, ROOT_READ, ("/x/link", "write"), ("/real", "read"))) == []
    assert lines(plan(host, ROOT_READ, ("/x/link", "deny"), ("/real", "write"))) == ["hidden-directory /real"]


@pytest.mark.parametrize(
    ("name", "access", "what"),
    [
        ("/ws/.codex", "read", "read-only"),
        ("/ws/link", "deny", "deny-read"),
        ("/ws/link/x/y", "deny", "deny-read"),
        ("/ws/link", "read", "read-only"),
    ],
)
def test_a_protected_path_over_a_link_that_can_be_replaced_is_refused(
    name: str, access: str, what: str
) -> None:
    link = "/".join(name.split("/")[:3])
    for target in ("/etc", "/gone", name):
        host = FakeHost({"/ws": "dir", link: f"-> {target}", "/etc": "dir"})
        assert refusal(host, ROOT_READ, ("/ws", "write"), (name, access)) == (
            f"cannot enforce sandbox {what} path {name} because it crosses writable symlink {link}"
        )


@pytest.mark.parametrize("name", [".git", ".agents", ".codex"])
def test_a_metadata_name_that_is_a_link_is_refused(name: str) -> None:
    host = FakeHost({f"/ws/{name}": "-> /anywhere"})
    text = f"cannot enforce sandbox read-only path /ws/{name} because it crosses writable symlink /ws/{name}"
    assert refusal(host, ROOT_READ, ("/ws", "write")) == text
    assert refusal(host, *WORKSPACE) == text


def test_a_link_where_nobody_can_write_is_followed() -> None:
    host = FakeHost({"/ws/ro/link": "-> /real", "/real/x": "dir"})
    rules: Rules = (ROOT_READ, ("/ws", "write"), ("/ws/ro", "read"), ("/ws/ro/link/x", "deny"))
    assert "hidden-directory /real/x" in lines(plan(host, *rules))


def test_a_workspace_over_a_link_that_can_be_replaced_is_refused_unless_it_is_named_without_it() -> None:
    host = FakeHost(
        {"/tmp/link": "-> /home/u/.ssh", "/home/u/.ssh": "dir", "/tmp/in": "-> real", "/tmp/real": "dir"}
    )
    text = "cannot enforce sandbox writable path {0} because it crosses writable symlink {0}"
    assert refusal(host, *WORKSPACE[:3], ("/tmp/link", "write")) == text.format("/tmp/link")
    # It could be written anyway; but its `.git` is protected only while the symlink leads there.
    assert refusal(host, ROOT_READ, ("/tmp", "write"), ("/tmp/in", "write")) == text.format("/tmp/in")
    made = plan(host, ROOT_READ, ("/tmp", "write"), ("/tmp/in", "write"), ("/tmp/real", "write"))
    assert lines(made) == ["write /tmp", "write /tmp/real"]


def test_links_in_a_circle_do_not_justify_each_other() -> None:
    host = FakeHost({"/a/l": "-> /b", "/b/l": "-> /a"})
    assert "crosses writable symlink" in refusal(host, ROOT_READ, ("/a/l", "write"), ("/b/l", "write"))
    up = FakeHost({"/a/l": "-> /a"})
    assert "crosses writable symlink /a/l" in refusal(up, ROOT_READ, ("/a/l", "write"))


def test_a_first_name_that_is_a_link_counts_under_a_writable_root_directory() -> None:
    host = FakeHost({"/bin": "-> usr/bin", "/usr/bin/x": b""})
    assert refusal(host, ("root", "write"), ("/bin/x", "deny")) == (
        "cannot enforce sandbox deny-read path /bin/x because it crosses writable symlink /bin"
    )


def test_a_platform_folder_over_a_link_that_can_be_replaced_is_left_out() -> None:
    host = FakeHost({"/run/current-system": "dir", "/run/current-system/sw": "-> /secret", "/secret": "dir"})
    assert lines(plan(host, ("/run", "write"), ("minimal", "read"))) == ["write /run"]


def test_what_cannot_be_looked_at_is_refused_only_where_it_could_be_opened_up() -> None:
    host = FakeHost({"/root": "locked", "/ws/shut": "locked"})
    assert lines(plan(host, ROOT_READ, ("/root/x", "deny"), ("/root/y", "write"))) == []
    assert refusal(host, ROOT_READ, ("/ws", "write"), ("/ws/shut/x", "deny")) == (
        "cannot enforce sandbox deny-read path /ws/shut/x because it cannot be looked at"
    )


# --- /dev and /proc ----------------------------------------------------------------------------------------


def test_nothing_of_the_hosts_comes_into_the_views_own_dev_and_proc_but_shared_memory() -> None:
    host = FakeHost(
        {"/dev/null": b"", "/dev/shm/x": "dir", "/proc/self": "-> 7", "/proc/7/cwd": "-> /ws", "/ws": "dir"}
    )
    rules: Rules = (("/dev", "write"), ("/proc", "write"), ("/dev/null", "read"), ("/proc/7", "read"))
    assert lines(plan(host, *rules)) == []
    assert lines(plan(host, ROOT_READ, *rules)) == []
    assert lines(plan(host, ROOT_READ, ("/dev/shm", "write"))) == ["write /dev/shm"]
    assert lines(plan(host, ROOT_READ, ("/dev/shm/x", "read"))) == ["read /dev/shm/x"]
    inside = plan(host, ROOT_READ, ("/dev/shm", "write"), ("/dev/shm/x", "deny"))
    assert lines(inside) == ["write /dev/shm", "hidden-directory /dev/shm/x"]
    assert lines(plan(host, ROOT_READ, ("/proc/self/cwd", "write"))) == ["write /ws"]
    denied = plan(
        host, ROOT_READ, ("/dev", "deny"), ("/dev/null", "read"), ("/proc", "deny"), ("/proc/7", "write")
    )
    assert lines(denied) == ["hidden-directory /dev", "hidden-directory /proc"]


def test_what_is_denied_in_the_views_own_dev_and_proc_is_hidden_there() -> None:
    host = FakeHost({"/dev/null": b"", "/dev/sda": b"", "/dev/shm": "dir", "/proc/sys/vm": "dir"})
    rules: Rules = (("/dev/null", "deny"), ("/dev/sda", "deny"), ("/dev/shm", "deny"), ("/proc/sys", "deny"))
    made = plan(host, ROOT_READ, *rules)
    assert lines(made) == ["hidden-file /dev/null", "hidden-directory /dev/shm", "hidden-directory /proc/sys"]
    assert all(mount.identity is None for mount in made.mounts)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/7", "it belongs to a process of this host"),
        ("/proc/self/environ", "it belongs to a process of this host"),
        ("/dev/ptmx", "every terminal needs it"),
    ],
)
def test_what_cannot_be_denied_there_is_refused(path: str, why: str) -> None:
    host = FakeHost({"/proc/self": "-> 7", "/proc/7/environ": b"", "/dev/ptmx": b""})
    assert refusal(host, ROOT_READ, (path, "deny")) == (
        f"cannot enforce sandbox deny-read path {path} because {why}"
    )


# --- facts and speed ---------------------------------------------------------------------------------------


def test_facts_hold_until_something_that_counts_changes() -> None:
    def host() -> FakeHost:
        tree: dict[str, str | bytes] = {
            "/ws/.git": b"gitdir: /ws/g",
            "/ws/g": "dir",
            "/ws/d": b"",
            "/l": "-> ws",
        }
        return FakeHost({**tree, "/other": "dir"})

    rules: Rules = (ROOT_READ, ("/l", "write"), ("/ws/d", "deny"), ("/ws/gone", "deny"))
    changes: list[tuple[str, str | bytes]] = [
        ("/ws/.codex", "dir"),
        ("/ws/.git", b"gitdir: /ws/h"),
        ("/ws/gone", b""),
        ("/ws/d", b"new"),
        ("/l", "-> other"),
        ("/ws/g", "dir"),
        ("/ws", "dir"),
    ]
    for path, value in changes:
        changed, facts = host(), Facts()
        plan(changed, *rules, facts=facts)
        assert facts.hold(changed)
        changed.put("/ws/other", b"")
        assert facts.hold(changed), "files in a workspace are no facts"
        changed.put(path, value)
        assert not facts.hold(changed), path


def test_facts_are_complete_for_a_refusal_too() -> None:
    host, facts = FakeHost({"/ws/.codex": "-> /x"}), Facts()
    with pytest.raises(PlanRefused):
        plan(host, *WORKSPACE, facts=facts)
    assert facts.hold(host)
    host.put("/ws/.codex", "dir")
    assert not facts.hold(host)


def test_plans_with_patterns_are_made_anew_each_time() -> None:
    host, facts = FakeHost({"/ws": "dir"}), Facts()
    plan(host, ROOT_READ, ("glob:*.x", "deny"), facts=facts)
    assert not facts.hold(host)


def test_facts_that_cannot_be_looked_at_do_not_hold() -> None:
    host, facts = FakeHost({"/a/b": "dir"}), Facts()
    plan(host, ROOT_READ, ("/a/b", "deny"), facts=facts)
    host.locked.add(b"/a")
    assert not facts.hold(host)
    hidden = Facts()
    plan(FakeHost({"/a": "locked"}), ROOT_READ, ("/a/b", "deny"), facts=hidden)
    assert not hidden.cacheable
