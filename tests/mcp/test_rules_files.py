"""Which rules files are read, and what is said when one cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.mcp import rules_files
from execserver.mcp.rules_files import MACHINE_FOLDER, RulesError, load_files, load_rules, rules_folders
from execserver.rules.policy import ASK_TO_ESCALATE, ASK_TO_RUN, DENY, ESCALATE, RUN, Policy
from tests.mcp.replaying import RULES

RULE = 'prefix_rule(["x"])\n'


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.rules").write_text(text)
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(RulesError) as caught:
        load_rules([str(folder)])
    return str(caught.value)


def test_the_machines_rules_come_before_the_persons(tmp_path: Path) -> None:
    assert rules_folders({"CODEX_HOME": str(tmp_path)}) == [MACHINE_FOLDER, f"{tmp_path}/rules"]
    assert rules_folders({"HOME": "/home/me"}) == ["/etc/codex/rules", "/home/me/.codex/rules"]
    assert rules_folders({"HOME": "/home/me", "CODEX_HOME": ""})[1] == "/home/me/.codex/rules"


def test_a_link_to_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert rules_folders({"CODEX_HOME": f"{tmp_path}/link"})[1] == f"{tmp_path}/real/rules"


def test_a_named_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("none", "does not exist"), ("file", "is not a directory")):
        with pytest.raises(RulesError) as caught:
            rules_folders({"CODEX_HOME": f"{tmp_path}/{name}"})
        assert str(caught.value) == (
            "failed to resolve codex_home for execpolicy\n\nCaused by:\n"
            f'    CODEX_HOME points to "{tmp_path}/{name}", but that path {why}'
        )


def test_a_folder_that_is_not_there_has_no_rules(tmp_path: Path) -> None:
    assert load_rules([str(tmp_path / "none")]) == Policy()


def test_the_files_of_all_folders_count_by_name_and_the_strictest_rule_wins(tmp_path: Path) -> None:
    machine = write(tmp_path / "machine", z='prefix_rule(["x", "no"], "forbidden")')
    person = write(tmp_path / "person", b=RULE, a='prefix_rule(["y"])')
    policy = load_rules([str(machine), str(person)])
    assert [rule.where for rule in policy.rules] == [
        f"{machine}/z.rules:1",
        f"{person}/a.rules:1",
        f"{person}/b.rules:1",
    ]
    assert policy.decide("/bin/x", []).action == ESCALATE
    assert policy.decide("/bin/x", ["no"]).action == DENY


def test_only_regular_files_with_the_ending_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "rules", good=RULE)
    for name in (".rules", "x.codexpolicy", "x.rules.bak", "x.RULES", "rules"):
        (folder / name).write_text("this is no rule")
    (folder / "folder.rules").mkdir()
    (folder / "link.rules").symlink_to(folder / "x.rules.bak")
    os.mkfifo(folder / "fifo.rules")
    assert len(load_rules([str(folder)]).rules) == 1
    assert rules_files.rules_files(str(folder)) == [f"{folder}/good.rules"]


def test_a_broken_file_is_named_with_line_and_column(tmp_path: Path) -> None:
    folder = write(tmp_path / "rules", a=RULE, b='\n  \nprefix_rule(["x"], "deny")')
    path = folder / "b.rules"
    assert refused(folder) == (
        f"failed to parse rules file {path}: starlark error: Traceback (most recent call last):\n"
        f"  * {path}:3, in <module>\n"
        '      prefix_rule(["x"], "deny")\n'
        "error: invalid decision: deny\n"
        f" --> {path}:3:1\n"
        "  |\n"
        '3 | prefix_rule(["x"], "deny")\n'
        "  | ^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  |"
    )


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "rules")
    (folder / "a.rules").write_bytes(b'prefix_rule(["\xff"])')
    assert refused(folder) == (
        f"failed to read rules file {folder}/a.rules: stream did not contain valid UTF-8"
    )


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "rules", a=RULE)
    monkeypatch.setattr(rules_files, "MAX_FILE_BYTES", len(RULE))
    assert len(load_rules([str(folder)]).rules) == 1
    monkeypatch.setattr(rules_files, "MAX_FILE_BYTES", len(RULE) - 1)
    assert "it is larger than 18 bytes" in refused(folder)


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_files, "MAX_FILES", 1)
    with pytest.raises(RulesError, match="2 rules files are more than 1"):
        load_files(["/a", "/b"])


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules").touch()
    assert refused(tmp_path / "rules") == (
        f"failed to read rules files from {tmp_path}/rules: Not a directory (os error 20)"
    )


def test_a_named_file_may_be_a_link_but_not_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(RULE)
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    assert load_files([f"{tmp_path}/link"]).decide("/bin/x", []).action == ESCALATE
    with pytest.raises(RulesError, match="it is not a regular file"):
        load_files([f"{tmp_path}/fifo"])
    with pytest.raises(RulesError, match=r"No such file or directory \(os error 2\)"):
        load_files([f"{tmp_path}/none"])


def test_the_rules_of_the_recorded_sessions_decide_as_recorded(tmp_path: Path) -> None:
    outcomes = {
        "/usr/bin/id": DENY,
        "/usr/bin/id -u": DENY,
        "/the/workdir/seq": DENY,
        "/usr/bin/factor 4": DENY,
        "/usr/bin/whoami": RUN,
        "/usr/bin/mkdir two": ESCALATE,
        "/usr/bin/mkdir three": RUN,
        "/usr/bin/mkdir one p": ESCALATE,
        "/usr/bin/mkdir ask": ASK_TO_ESCALATE,
        "/usr/bin/true": ASK_TO_ESCALATE,
        "/usr/bin/rm -f keep": ASK_TO_RUN,
        "/usr/bin/rm keep2": RUN,
        "/the/workdir/runme.sh a b": ESCALATE,
    }
    policy = load_rules([str(write(tmp_path / "rules", default=RULES))])
    decided = {}
    for command in outcomes:
        file, *arguments = command.split()
        decided[command] = policy.decide(file, arguments).action
    assert decided == outcomes


def test_requirements_count_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "rules", a=RULE)
    requirements = tmp_path / "requirements.toml"
    requirements.write_text('rules.prefix_rules = [{pattern = [{token = "x"}], decision = "forbidden"}]')
    policy = load_rules([str(folder)], str(requirements))
    assert policy.decide("/bin/x", []).action == DENY
    assert len(policy.rules) == 2


def test_requirements_that_are_no_text_are_told(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.toml"
    requirements.write_bytes(b"\xff")
    with pytest.raises(RulesError) as caught:
        load_rules([], str(requirements))
    assert str(caught.value) == (
        f"Failed to read requirements file {requirements}: stream did not contain valid UTF-8"
    )


def test_requirements_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(RulesError) as caught:
        load_rules([], str(tmp_path))
    assert str(caught.value) == f"Failed to read requirements file {tmp_path}: Is a directory (os error 21)"


def test_broken_requirements_are_told(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.toml"
    requirements.write_text("rules.prefix_rules = []")
    with pytest.raises(RulesError, match="rules prefix_rules cannot be empty"):
        load_rules([], str(requirements))


def test_the_page_about_rules_tells_the_truth(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    sources = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(sources) == 3
    first, *others = (load_rules([str(write(tmp_path / str(n), a=text))]) for n, text in enumerate(sources))
    assert first.decide("/usr/bin/git", ["pull"]).action == ESCALATE
    assert first.decide("/usr/bin/git", ["push", "--force"]).action == DENY
    assert others[0].decide("/usr/bin/git", ["fetch"]).action == ESCALATE
    assert others[0].decide("/here/git", ["fetch"]).action == RUN
    assert others[1].decide("/usr/bin/mypy", ["."]).action == ESCALATE
