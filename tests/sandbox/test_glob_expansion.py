from __future__ import annotations

import errno

import pytest

from execserver.sandbox.plan import PlanRefused, SandboxPlan
from execserver.sandbox.policy import glob_expansion
from tests.sandbox.policies import Rules, plan
from tests.support.fake_host import FakeHost

ROOT_READ = ("root", "read")


def hidden(made: SandboxPlan) -> list[str]:
    """Return what is hidden."""
    return [mount.path.decode() for mount in made.mounts if mount.kind.startswith(("hidden", "passage"))]


def expand(
    host: FakeHost, *patterns: str, rules: Rules = (ROOT_READ,), depth: int | None = None
) -> list[str]:
    """Return what patterns hide on a host."""
    return hidden(plan(host, *rules, *((f"glob:{pattern}", "deny") for pattern in patterns), depth=depth))


def test_what_a_pattern_matches_is_hidden_dotted_names_as_well() -> None:
    host = FakeHost(
        {"/ws/.env": b"", "/ws/a/x.env": b"", "/ws/.h/y.env": b"", "/ws/env": b"", "/o/z.env": b""}
    )
    assert expand(host, "**/*.env") == ["/ws/.env", "/ws/.h/y.env", "/ws/a/x.env"]
    assert expand(host, "*.env", "a/*") == ["/ws/.env", "/ws/a/x.env"]


def test_a_matched_directory_is_hidden_whole_but_for_what_a_rule_grants_below_it() -> None:
    host = FakeHost({"/ws/out/a": b"", "/ws/out/keep/b": b"", "/ws/out/keep/out": b""})
    assert expand(host, "**/out") == ["/ws/out"]
    rules: Rules = (ROOT_READ, ("/ws/out/keep", "read"))
    assert expand(host, "**/out", rules=rules) == ["/ws/out", "/ws/out/keep/out"]


def test_a_granted_place_that_a_pattern_matches_is_denied() -> None:
    host = FakeHost({"/ws/a/b/c": b"", "/ws/f": b""})
    assert expand(host, "/ws/**", rules=(("/ws/a/b", "write"), ("/ws/f", "read"))) == []
    assert expand(host, "/ws/**", rules=(ROOT_READ, ("/ws/a/b", "write"), ("/ws/f", "read"))) == [
        "/ws/a",
        "/ws/f",
    ]


def test_links_are_not_followed_but_what_a_matched_link_leads_to_is_hidden() -> None:
    host = FakeHost(
        {"/ws/x.env": "-> /secret/f", "/secret/f": b"", "/ws/d": "-> /other", "/other/y.env": b""}
    )
    assert expand(host, "**/*.env") == ["/secret/f"]
    loose = FakeHost({"/ws/x.env": "-> gone", "/ws/y.env": "-> /dev/null", "/dev/null": b""})
    assert expand(loose, "**/*.env") == []


def test_a_matched_link_to_the_root_directory_is_refused() -> None:
    with pytest.raises(PlanRefused, match=r"deny-read path /ws/x\.env because it is a link to /$"):
        expand(FakeHost({"/ws/x.env": "-> /"}), "**/*.env")


def test_the_depth_is_bounded_by_the_profile() -> None:
    host = FakeHost({"/ws/1.x": b"", "/ws/a/2.x": b"", "/ws/a/b/3.x": b""})
    assert expand(host, "**/*.x", depth=1) == ["/ws/1.x"]
    assert expand(host, "**/*.x", depth=2) == ["/ws/1.x", "/ws/a/2.x"]
    assert len(expand(host, "**/*.x")) == 3


def test_patterns_that_begin_at_the_root_are_looked_for_in_the_project_roots() -> None:
    host = FakeHost({"/ws/a.pem": b"", "/etc/b.pem": b"", "/w2/c.pem": b""})
    assert expand(host, "/**/*.pem") == ["/ws/a.pem"]
    made = plan(host, ROOT_READ, ("glob:/**/*.pem", "deny"), roots=("/w2", "/gone"))
    assert hidden(made) == ["/w2/c.pem"]
    assert made.globs == (b"/**/*.pem",)


def test_a_pattern_below_a_link_is_about_where_it_leads() -> None:
    host = FakeHost({"/x/l": "-> /real", "/real/a.env": b""})
    made = plan(host, ROOT_READ, ("glob:/x/l/*.env", "deny"))
    assert hidden(made) == ["/real/a.env"]
    assert made.globs == (b"/real/*.env", b"/x/l/*.env")


def test_a_pattern_below_a_link_that_can_be_replaced_is_refused() -> None:
    host = FakeHost({"/ws/l": "-> /real", "/real/a.env": b""})
    with pytest.raises(
        PlanRefused, match=r"deny-read path /ws/l/\*\.env because it crosses writable symlink /ws/l$"
    ):
        expand(host, "l/*.env", rules=(ROOT_READ, ("/ws", "write")))


def test_a_missing_directory_has_no_matches() -> None:
    assert expand(FakeHost({"/ws": "dir"}), "gone/*.env") == []


def test_only_what_can_be_seen_is_walked() -> None:
    host = FakeHost({"/ws/no/a.x": b"", "/ws/yes/b.x": b"", "/ws/yes/not/c.x": b""})
    rules: Rules = (("/ws/yes", "read"), ("/ws/yes/not", "deny"))
    assert expand(host, "/ws/**/*.x", rules=rules) == ["/ws/yes/b.x", "/ws/yes/not"]


def test_a_directory_that_cannot_be_listed_is_hidden_whole() -> None:
    host = FakeHost({"/ws/shut": "locked", "/ws/a.x": b""})
    assert expand(host, "**/*.x") == ["/ws/a.x", "/ws/shut"]


def test_a_directory_that_goes_away_meanwhile_is_left_out() -> None:
    class Vanishing(FakeHost):
        def scan(self, path: bytes) -> list[tuple[bytes, int]]:
            if path == b"/ws/a":
                raise FileNotFoundError(errno.ENOENT, "gone")
            return super().scan(path)

    assert expand(Vanishing({"/ws/a/1.x": b"", "/ws/2.x": b""}), "**/*.x") == ["/ws/2.x"]


def test_the_literal_directory_of_a_pattern_cannot_be_renamed() -> None:
    host = FakeHost({"/ws/keys/deep/k": b""})
    made = plan(host, ROOT_READ, ("/ws", "write"), ("glob:keys/deep/*", "deny"))
    kinds = [f"{mount.kind} {mount.path.decode()}" for mount in made.mounts]
    assert kinds == ["write /ws", "write /ws/keys", "write /ws/keys/deep", "hidden-file /ws/keys/deep/k"]
    many = FakeHost({"/ws/p/1.env": b""})
    made = plan(many, ROOT_READ, ("/ws", "write"), ("glob:**/*.env", "deny"))
    assert [mount.path for mount in made.mounts] == [b"/ws", b"/ws/p/1.env"]


def test_more_matches_than_allowed_are_refused() -> None:
    host = FakeHost({f"/ws/{number}.x": b"" for number in range(30)})
    limit = glob_expansion.MATCH_LIMIT
    assert limit == 8192
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glob_expansion, "MATCH_LIMIT", 30)
        assert len(expand(host, "*.x")) == 30
        patch.setattr(glob_expansion, "MATCH_LIMIT", 29)
        with pytest.raises(
            PlanRefused, match=r"^unreadable glob expansion for /ws matched more than 29 paths$"
        ):
            expand(host, "*.x")


def test_too_many_names_and_too_much_time_are_refused() -> None:
    class Slow(FakeHost):
        def scan(self, path: bytes) -> list[tuple[bytes, int]]:
            self.clock += 2.0
            return super().scan(path)

    host = Slow({"/ws/a/b": b""})
    with pytest.raises(PlanRefused, match=r"^unreadable glob expansion for /ws/a takes too long$"):
        expand(host, "**/*.x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glob_expansion, "ENTRY_LIMIT", 1)
        with pytest.raises(PlanRefused, match="takes too long"):
            expand(FakeHost({"/ws/a": b"", "/ws/b": b""}), "*.x")
