"""The second go of tests that failed beside others: who gets one, what it counts, and what is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import build
from tools import lanes, other_user
from tools.environment import Environment

# Each fails as often as its parameter says, counted in a file beside it.
TESTS = """
import pathlib, pytest

def attempt(name):
    place = pathlib.Path(__file__).parent / "played"
    with place.open("a") as file:
        file.write(name + "\\n")
    return place.read_text().split("\\n").count(name)

@pytest.mark.parametrize("times", {times})
def test_fails(times):
    assert attempt("{name}-" + str(times)) > times, "it fails"

@pytest.fixture
def leaving():
    yield
    assert attempt("{name}-left") > {left}, "it leaves something"

def test_leaves(leaving):
    pass

def test_passes():
    attempt("{name}-passes")
"""
PYTEST = [sys.executable, "-m", "pytest"]


def _folder(place: Path, name: str, times: list[int], left: int = 0, more: str = "") -> str:
    folder = place / name
    folder.mkdir()
    (folder / f"test_{name}.py").write_text(TESTS.format(name=name, times=times, left=left) + more)
    return name


def _played(place: Path, name: str) -> list[str]:
    return [line for line in (place / name / "played").read_text().splitlines() if line != f"{name}-left"]


def _play(place: Path, names: list[str], second_go: bool = True) -> int:
    (place / "pytest.ini").write_text("[pytest]\n")
    runner = lanes.Runner(PYTEST, {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, place)
    return lanes.play(runner, [[name] for name in names], 50.0, second_go=second_go)


def test_what_passes_alone_passes_and_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = [_folder(tmp_path, "a", [0, 1]), _folder(tmp_path, "b", [0]), _folder(tmp_path, "c", [0], left=1)]
    assert _play(tmp_path, names) == 0
    shown = capfd.readouterr()
    assert "AssertionError: it fails" in shown.out
    assert _told(shown.err) == [
        "FAILED: a",
        "passed: b",
        "FAILED: c",
        "playing once more, alone: 2 of the tests, which failed beside others",
        "passed when played alone: a/test_a.py::test_fails[1] (failed beside others)",
        "passed when played alone: c/test_c.py::test_leaves (failed beside others)",
    ]
    assert _played(tmp_path, "a") == ["a-0", "a-1", "a-passes", "a-1"]
    assert _played(tmp_path, "b") == ["b-0", "b-passes"]


def test_what_fails_again_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = [_folder(tmp_path, "a", [2]), _folder(tmp_path, "b", [1])]
    assert _play(tmp_path, names) == 1
    assert _told(capfd.readouterr().err)[-2:] == [
        "FAILED again, played alone: a/test_a.py::test_fails[2] (failed beside others)",
        "passed when played alone: b/test_b.py::test_fails[1] (failed beside others)",
    ]


@pytest.mark.parametrize("many", [lanes.MOST_AGAIN, lanes.MOST_AGAIN + 1])
def test_many_failures_are_not_the_machine(
    many: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = (
        f"\n@pytest.mark.parametrize('n', range({many - 1}))\ndef test_more(n): assert attempt(str(n)) > 1\n"
    )
    names = [_folder(tmp_path, "a", [0], more=more), _folder(tmp_path, "b", [1])]
    status = _play(tmp_path, names)
    assert (status, "alone" in capfd.readouterr().err) == (
        (0, True) if many == lanes.MOST_AGAIN else (1, False)
    )


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("\ndef test_interrupts(): raise KeyboardInterrupt\n", pytest.ExitCode.INTERRUPTED),
        ("\ndef test_exits(): import os; os._exit(1)\n", 1),
        ("\ndef test_is_killed(): import os; os.kill(os.getpid(), 9)\n", -9),
        ("\nraise RuntimeError\n", pytest.ExitCode.INTERRUPTED),
    ],
    ids=["interrupted", "exited", "killed", "not collected"],
)
def test_a_lane_without_a_proper_end_leaves_no_second_go(
    more: str, status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [_folder(tmp_path, "a", [0], more=more), _folder(tmp_path, "b", [1])]
    assert _play(tmp_path, names) == status
    assert "alone" not in capfd.readouterr().err
    assert _played(tmp_path, "b") == ["b-1", "b-passes"]


def test_a_second_go_that_ends_early_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = "\ndef test_x():\n    if attempt('x') == 2: raise KeyboardInterrupt\n    assert False\n"
    assert _play(tmp_path, [_folder(tmp_path, "a", [1], more=more)]) == pytest.ExitCode.INTERRUPTED
    assert _told(capfd.readouterr().err)[-1] == "the second go did not come to its end"


def test_there_is_none_where_none_is_asked_for(tmp_path: Path) -> None:
    assert _play(tmp_path, [_folder(tmp_path, "a", [1])], second_go=False) == 1
    assert _played(tmp_path, "a") == ["a-1", "a-passes"]


@pytest.mark.parametrize(
    ("arguments", "options", "asked"),
    [([], "", True), ([], "-x", False), (["-x"], "", False), (["--long"], "", False)],
)
def test_only_a_run_of_everything_has_a_second_go(
    arguments: list[str], options: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[object] = []

    def record(*words: object) -> int:
        asked_for.append(words[-1])
        return 0

    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    monkeypatch.setattr(build, "_built", lambda: ("/dist/x", Environment(Path("/py"), Path("/sp"))))
    monkeypatch.setattr(build, "run_limited", lambda *words: 0)
    monkeypatch.setattr(build, "run_in_lanes", record)
    monkeypatch.setattr(build, "_test_as_other_user", record)
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    assert build.main(["test", *arguments]) == 0
    assert asked_for == [asked, asked]


AS_PYTEST = """
import json, os, pathlib, sys
place = pathlib.Path(sys.argv[1].removeprefix("--override-ini=cache_dir="), "v", "cache")
place.mkdir(parents=True)
(place / "lastfailed").write_text(json.dumps({"test_x": True} if "all" in sys.argv else {}))
print(os.getuid(), *sys.argv[3:])
sys.exit("all" in sys.argv)
"""


@pytest.mark.skipif(other_user.why_not() != "", reason=other_user.why_not())
def test_the_ordinary_user_has_a_second_go_as_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    with other_user.home(project, project / ".venv" / "bin" / "python3") as home:
        command = [str(home.python), "-c", AS_PYTEST]
        runner = lanes.Runner(command, home.variables(os.environ), home.project, home.user)
        assert lanes.play(runner, [["all"]], 50.0, second_go=True) == 0
    shown = capfd.readouterr()
    assert shown.out.splitlines() == [f"{home.user} all", f"{home.user} test_x"]
    assert _told(shown.err)[-1] == "passed when played alone: test_x (failed beside others)"


def _told(text: str) -> list[str]:
    """Return what the driver said, without the durations and what pytest itself says on that pipe."""
    lines = [line.removeprefix("build.py: ") for line in text.splitlines() if line.startswith("build.py: ")]
    return [line if " s: " not in line else line.split()[0] + ": " + line.split(" s: ")[1] for line in lines]
