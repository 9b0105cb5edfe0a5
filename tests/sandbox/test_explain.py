from __future__ import annotations

import pytest

from execserver.protocol.permissions import READ, WRITE
from execserver.sandbox.policy.explain import explain
from tests.sandbox.policies import WORKSPACE, Rules, policy
from tests.support.fake_host import FakeHost

HOST = FakeHost(
    {
        "/ws/.git": b"gitdir: /tmp/g",
        "/ws/link": "-> /etc",
        "/tmp/g/HEAD": b"",
        "/etc/hosts": b"",
        "/usr/bin": "dir",
        "/dev/null": b"",
        "/proc/1": "dir",
    }
)


@pytest.mark.parametrize(
    ("rules", "path", "operation", "access", "rule"),
    [
        (WORKSPACE, "/etc/hosts", WRITE, "read", "root: read"),
        (WORKSPACE, "/etc/new", WRITE, "read", "root: read"),
        (WORKSPACE, "/ws/.git", WRITE, "read", "project_roots .git: read"),
        (WORKSPACE, "/tmp/.codex/x", WRITE, "read", "metadata name .codex: read"),
        (WORKSPACE, "/tmp/g/HEAD", WRITE, "read", "git directory of a writable root: read"),
        ((("/ws", "write"),), "/etc/hosts", READ, "deny", "no rule"),
        ((("/ws", "write"), ("minimal", "read")), "/usr/bin/x", WRITE, "read", "minimal: read"),
        ((("root", "read"), ("/etc", "deny")), "/etc/hosts", READ, "deny", "path file:///etc: deny"),
        (
            (("root", "read"), ("glob:/etc/h*", "deny")),
            "/etc/hosts",
            READ,
            "deny",
            "glob_pattern /etc/h*: deny",
        ),
    ],
)
def test_the_deciding_rule_is_named(rules: Rules, path: str, operation: str, access: str, rule: str) -> None:
    found = explain(policy(HOST, *rules), HOST, path.encode(), operation)
    assert found is not None
    members, sentence = found
    assert members == {"path": path, "rule": rule, "access": access}
    may = "may be read but not written" if access == "read" else "may not be read or written"
    assert sentence == f"{path} {may} ({rule})"


@pytest.mark.parametrize(
    ("rules", "path", "operation"),
    [
        (WORKSPACE, "/ws/a", WRITE),
        (WORKSPACE, "/etc/hosts", READ),
        (WORKSPACE, "/ws/link/hosts", WRITE),
        (WORKSPACE, "/dev/null", WRITE),
        (WORKSPACE, "/proc/1", WRITE),
        (WORKSPACE, "relative", WRITE),
        (WORKSPACE, "/etc/../ws", WRITE),
        (WORKSPACE, "/etc//x", WRITE),
        (WORKSPACE, "/etc/a\0b", WRITE),
        ((("root", "write"),), "/etc/hosts", WRITE),
        ((("root", "read"), ("/ws", "write"), ("/ws/link", "deny")), "/etc/hosts", WRITE),
    ],
)
def test_nothing_is_said_where_nothing_is_certain(rules: Rules, path: str, operation: str) -> None:
    assert explain(policy(HOST, *rules), HOST, path.encode(), operation) is None
