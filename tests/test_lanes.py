"""The driver's `test`: which rounds it plays, in lanes and as an ordinary user, and that it ends."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import build
from tools import lanes, other_user
from tools.environment import Environment


@pytest.mark.parametrize(
    ("arguments", "command", "variables"),
    [
        (["-k", "x"], ["-k", "x"], {}),
        (["--long"], [], {"EXECSERVER_LONG": "1"}),
        (["--reference"], ["tests/reference", "tests/e2e"], {"EXECSERVER_REFERENCE": "1"}),
        (
            ["--reference", "tests/reference/test_x.py"],
            ["tests/reference/test_x.py"],
            {"EXECSERVER_REFERENCE": "1"},
        ),
        (["--reference", "-x"], ["-x", "tests/reference", "tests/e2e"], {"EXECSERVER_REFERENCE": "1"}),
    ],
)
def test_the_test_verb_chooses_rounds_and_tests(
    arguments: list[str], command: list[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, str], float]] = []

    def record(run: list[str], environ: dict[str, str], limit_s: float, second_go: bool = False) -> int:
        assert not second_go
        calls.append((run, environ, limit_s))
        return 0

    for name in ("EXECSERVER_LONG", "EXECSERVER_REFERENCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("EXECSERVER_PROGRAM", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(build, "_built", lambda: ("/dist/x", Environment(Path("/py"), Path("/sp"))))
    monkeypatch.setattr(build, "run_limited", record)
    monkeypatch.setattr(build, "run_in_lanes", record)
    monkeypatch.setattr(build, "why_not", lambda: "nobody there")
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    assert build.main(["test", *arguments]) == 0
    run, environ, limit_s = calls[0]
    assert run == ["/py", "-m", "pytest", *command]
    told = {name: environ[name] for name in environ if name.startswith("EXECSERVER_")}
    assert told == {**variables, "EXECSERVER_PROGRAM": "/dist/x"}
    assert "PYTHONDONTWRITEBYTECODE" not in environ  # what one lane has compiled, the others read
    usual = build.TEST_LIMIT_S
    assert limit_s == usual if not variables else usual < limit_s <= 75 * 60
    assert [run for run, environ, _ in calls if "EXECSERVER_PROGRAM" not in environ] == (
        [["/py", "-m", "pytest", "tests/e2e"], ["/py", "-m", "bench.cost", "--check"]]
        if "--long" in arguments
        else []
    )


def test_a_test_run_without_end_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = tmp_path / "interrupted"
    code = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit(2)))\n"
        "pathlib.Path(sys.argv[2]).touch()\nsignal.pause()\n"
    )
    ready = tmp_path / "ready"
    command = [sys.executable, "-S", "-c", code, str(marker), str(ready)]
    assert lanes.run_limited(command, dict(os.environ), 2.0) == pytest.ExitCode.INTERRUPTED
    assert ready.exists()
    assert marker.exists()
    assert "did not end within" in capsys.readouterr().err


PYTEST = """
import os, sys
lane = "rest" if "--ignore=tests/sandbox" in sys.argv else sys.argv[-1]
print(lane)
sys.exit(int(os.environ.get(lane, "0")))
"""


@pytest.mark.parametrize(
    ("first", "rest", "others", "status"),
    [
        *((0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (5, 1, 5, 1)),
        *((5, 0, 5, 0), (0, 5, 5, 0), (5, 5, 0, 0), (5, 5, 5, 5)),
    ],
)
def test_every_lane_counts_and_is_shown(
    first: int, rest: int, others: int, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [places[-1] for places in lanes.LANES]
    variables = {**dict.fromkeys(names, str(others)), names[0]: str(first), "rest": str(rest)}
    assert lanes.run_in_lanes([sys.executable, "-S", "-c", PYTEST], variables, 20.0) == status
    shown = capfd.readouterr()
    assert sorted(shown.out.split()) == sorted(["rest", *names])
    words = {0: "passed", 5: "holds none of these tests", 1: "FAILED"}
    told = [re.sub(r"\d+ s", "N s", line) for line in shown.err.splitlines()]
    lane_statuses = (first, *(others for _ in names[1:]), rest)
    places = [*(" ".join(lane) for lane in lanes.LANES), "everything else"]
    assert told == [
        f"build.py: {words[each]} after N s: {place}"
        for each, place in zip(lane_statuses, places, strict=True)
    ]


def test_what_the_lanes_name_exists_and_is_named_once() -> None:
    for every in (lanes.LANES, other_user.PART, [other_user.SAME_FOR_ALL]):
        places = [place for lane in every for place in lane]
        assert [place for place in places if not (Path(build.ROOT) / place).exists()] == []
        assert sorted(set(places)) == sorted(places)


def test_without_root_it_is_told_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert build._test_as_other_user(Path(sys.executable), [], whole=False, second_go=True) == 0
    assert capsys.readouterr().err == (
        "build.py: the tests as an ordinary user are left out: only root can become another user\n"
    )


@pytest.mark.parametrize("whole", [False, True])
def test_an_ordinary_user_plays_a_part_and_in_long_runs_all(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def home(project: Path, python: Path) -> Iterator[other_user.Home]:
        yield other_user.Home(41_000, tmp_path, python)

    def record(runner: lanes.Runner, *more: object, second_go: bool = False) -> int:
        assert second_go is not whole
        played.append((runner, *more))
        return 3

    played: list[tuple[object, ...]] = []
    monkeypatch.setenv("SECRET", "x")
    for name, value in (("home", home), ("why_not", lambda: ""), ("play", record), ("play_all", record)):
        monkeypatch.setattr(build, name, value)
    assert build._test_as_other_user(Path("/py"), ["-x"], whole=whole, second_go=not whole) == 3
    [(runner, *more)] = played
    assert isinstance(runner, lanes.Runner)
    left_out = [] if whole else [f"--ignore={place}" for place in other_user.SAME_FOR_ALL]
    assert runner.command == ["/py", "-m", "pytest", "-x", *left_out]
    assert (runner.folder, runner.user) == (tmp_path, 41_000)
    assert more == ([build.LONG_TEST_LIMIT_S] if whole else [other_user.PART, build.OTHER_USER_LIMIT_S])
    assert "SECRET" not in runner.variables
    assert runner.variables["HOME"] == str(tmp_path.parent)
    assert runner.variables["PYTEST_DEBUG_TEMPROOT"] == str(tmp_path.parents[1])


SHOW = """
import os, pathlib, site, sys
home = pathlib.Path(os.environ["HOME"])
print(os.getresuid(), os.getresgid(), os.getgroups())
print(oct(home.parent.stat().st_mode & 0o777), home.name.isascii())
print(pathlib.Path.cwd() == home / "project", pathlib.Path("file").read_text())
print(sys.prefix == str(home / "project" / ".venv"))
"""


@pytest.mark.skipif(other_user.why_not() != "", reason=other_user.why_not())
def test_the_ordinary_user_has_a_closed_home_and_no_rights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "file").write_text("mine")
    (project / "file").chmod(0o600)
    compiled = Path("__pycache__", "part.cpython-311.pyc")
    by_pytest = compiled.with_name("test_part.cpython-311-pytest-9.0.pyc")
    (project / "__pycache__").mkdir()
    for path in (compiled, by_pytest):
        (project / path).touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    with other_user.home(project, project / ".venv" / "bin" / "python3") as home:
        assert home.user not in {entry.pw_uid for entry in pwd.getpwall()}
        runner = lanes.Runner(
            [str(home.python), "-c", SHOW], home.variables(os.environ), home.project, home.user
        )
        assert lanes.play(runner, [[]], 30.0) == 0
        assert not (home.project / ".git").exists()
        assert ((home.project / compiled).exists(), (home.project / by_pytest).exists()) == (True, False)
        folder = home.project.parents[1]
    assert not folder.exists()
    assert capfd.readouterr().out.splitlines() == [
        f"({home.user}, {home.user}, {home.user}) ({home.user}, {home.user}, {home.user}) []",
        "0o700 False",
        "True mine",
        "True",
    ]


SHOW_FOLDER = """
def test_show(tmp_path):
    with open({shown!r}, "a") as shown:
        print(tmp_path.parent, file=shown)
    (tmp_path / "closed").mkdir(mode=0)
"""


def test_each_lane_has_a_folder_of_its_own_that_goes_with_it(tmp_path: Path) -> None:
    """Two runs that share pytest's own folder can meet where it removes old ones, and fail at their end."""
    shown = tmp_path / "shown"
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(SHOW_FOLDER.format(shown=str(shown)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    shared = tmp_path / "shared"
    shared.mkdir()
    variables = {
        **os.environ,
        "PYTEST_DEBUG_TEMPROOT": str(shared),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    runner = lanes.Runner([sys.executable, "-m", "pytest"], variables, tmp_path)
    assert lanes.play(runner, [["test_a.py"], ["test_b.py"]], 50.0) == 0
    first, second = shown.read_text().splitlines()
    assert first != second
    assert [shared in Path(place).parents for place in (first, second)] == [True, True]
    assert list(shared.iterdir()) == []
