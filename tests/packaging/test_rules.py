"""Both builds carry the language of rules files."""

from __future__ import annotations

from pathlib import Path

from tests.support.one_file import Box


def test_rules_are_evaluated(box: Box, tmp_path: Path) -> None:
    rules = tmp_path / "my.rules"
    rules.write_text('[prefix_rule([f"{name}"], "forbidden") for name in ["true", "false"]]')
    done = box.run(["rules", "check", rules, "--", "/bin/true"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1] == b"  is not run (forbidden)"
    rules.write_text("no")
    done = box.run(["rules", "check", rules, "--", "/bin/true"])
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"starlark error: error: Variable `no` not found" in done.stderr
