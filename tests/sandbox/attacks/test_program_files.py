"""Commands try to put a program where a later start, outside, would take it for its own; and to hold it up.

What a start makes of planted files where no view keeps commands away: tests/packaging/test_planted.py.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from execserver import runtime_paths
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import own_files
from execserver.sandbox.backends import landlock_only
from execserver.sandbox.own_files import keep_own_files
from execserver.sandbox.plan import ROOT_READ_ONLY, ROOT_WRITABLE, WRITE, SandboxPlan
from execserver.sandbox.policy.host import Host
from execserver.zygote.confinement import LANDLOCK
from tests.support import ways
from tests.support.roots import give, mount
from tests.support.ways import Way, listing

NAME = "ab" * 16
PLANT = """
def plant(place):
    os.makedirs(place + "/lib", exist_ok=True)
    with open(place + "/lib/ld.so", "w") as file:
        file.write("planted")
def move(place):
    os.rename(place, place + ".moved")
    plant(place)
result = {}
for place in places:
    parent = os.path.dirname(place)
    result[place] = {
        "made": tried(plant, f"{place}/{'cd' * 16}"),
        "changed": tried(plant, f"{place}/{'ab' * 16}"),
        "moved": tried(move, place),
        "removed": tried(os.rmdir, place),
        "time": tried(os.utime, place),
        "lock": tried(os.open, place + "/.lock", os.O_WRONLY),
        "lock to read": tried(os.open, place + "/.lock", os.O_RDONLY),
    }
    if parent not in writable:
        result[place]["parent moved"] = tried(os.rename, parent, parent + ".moved")
"""


class Scene(NamedTuple):
    """A home with a used cache, and the other places of a user, which nobody has made yet."""

    home: Path
    cache: Path
    places: list[Path]
    environ: dict[bytes, bytes]
    way: Way

    def run(self, plan: SandboxPlan, code: str) -> dict[str, dict[str, str]]:
        """Run Python code in a view; it knows the places and what its policy lets it write."""
        names = [str(place) for place in self.places]
        writable = [str(self.home), str(self.home.parent / "tmp")]
        found: dict[str, dict[str, str]] = ways.run_python(
            self.way, plan, f"places, writable = {names}, {writable}\n{code}"
        )
        return found


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The places of a user, as the environment of the server and the system name them."""
    (name,) = {"any_way", "few_ways", "way"} & set(request.fixturenames)
    way: Way = request.getfixturevalue(name)
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    cache = home / ".cache" / "execserver"
    (cache / NAME / "lib").mkdir(parents=True)
    (cache / NAME / "lib" / "ld.so").write_text("ours")
    for lock in (".lock", f".use-{NAME}"):
        (cache / lock).touch(0o200)
    temporary.mkdir()
    give(tmp_path, way.user)
    places = [cache, home / "xdg" / "execserver", temporary / f"execserver-{os.geteuid()}"]
    environ = {
        b"HOME": os.fsencode(home),
        b"XDG_CACHE_HOME": os.fsencode(home / "xdg"),
        b"XDG_RUNTIME_DIR": b"/nonexistent",
    }
    monkeypatch.setattr(runtime_paths, "_home", [os.fsencode(home)])
    monkeypatch.setattr(own_files, "_TEMPORARY", (os.fsencode(temporary),))
    monkeypatch.setattr(own_files, "record_places", lambda _: ())
    monkeypatch.setattr(own_files, "certificate_folder", lambda _: b"/dev/null")  # `test_certificates` has it
    monkeypatch.setattr(own_files, "token_stores", lambda _: [])  # `test_own_tokens` has them
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: None))
    return Scene(home, cache, places, environ, way)


def policy(scene: Scene, root: str) -> SandboxPlan:
    """Return a plan that lets a command write the home and the temporary folder, or everything."""
    folders = (scene.home, scene.home.parent / "tmp")
    written = tuple(mount(WRITE, folder) for folder in folders)
    plan = SandboxPlan(root, written, writable=tuple(os.fsencode(folder) for folder in folders))
    kept = keep_own_files(plan, Host(), scene.environ)
    for place in scene.places:
        give(place.parent, scene.way.user)  # in use the server, which makes them, is that user itself
    return kept


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_WRITABLE])
def test_nothing_is_planted_in_any_place(root: str, scene: Scene, way: Way) -> None:
    plan = policy(scene, root)
    before = listing(scene.home.parent)
    for place, outcomes in scene.run(plan, PLANT).items():
        assert set(outcomes.values()) <= {"EROFS", "EBUSY", "EACCES", "ENOENT"}, (place, outcomes)
        assert outcomes["made"] == "EROFS"
    assert listing(scene.home.parent) == before
    assert (scene.cache / NAME / "lib" / "ld.so").read_text() == "ours"


def test_landlock_refuses_to_let_a_place_be_written(scene: Scene, any_way: Way) -> None:
    """It cannot take a folder out of a writable one, so such a policy is none for it."""
    plan = policy(scene, ROOT_READ_ONLY)
    assert landlock_only.inexact(plan) == "it cannot keep parts of a writable folder read-only"
    if any_way.back_end == LANDLOCK:
        done = ways.run(any_way, plan, "echo inside")
        assert "inside" not in done.out


def test_who_may_only_read_can_lock_nothing_that_counts(scene: Scene, any_way: Way) -> None:
    code = f"""
import fcntl
held = []
def lock(path, flags):
    held.append(os.open(path, flags))
    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
names = [f"{{places[0]}}/{{name}}" for name in (".lock", ".use-{NAME}")]
result = {{"locks": {{tried(lock, name, flags) for name in names for flags in (os.O_RDONLY, os.O_WRONLY)}}}}
result["locks"] = sorted(result["locks"])
"""
    plan = SandboxPlan(ROOT_READ_ONLY)
    outcomes = scene.run(plan, code)["locks"]
    assert set(outcomes) <= {"EACCES", "EROFS", "EPERM"}, outcomes
    assert outcomes
    for name in (".lock", f".use-{NAME}"):
        descriptor = os.open(scene.cache / name, os.O_WRONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


def test_no_note_is_forged_in_any_place_of_records(
    scene: Scene, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note of a living owner keeps stand-ins on the host, or starts from going on."""
    used, other = scene.home / "run" / "execserver", scene.home.parent / "tmp" / "records"
    for place in (used, other):
        place.mkdir(parents=True, mode=0o700)
    give(scene.home, way.user)
    give(other, way.user)
    monkeypatch.setattr(own_files, "record_places", lambda _: (os.fsencode(used), os.fsencode(other)))
    monkeypatch.setattr(own_files, "_is_anothers", lambda _: False)  # the way's user's, while root plans
    plan = policy(scene, ROOT_READ_ONLY)
    code = f"""
def forge(place):
    os.mkdir(place + "/1-2-3-4-5")
result = {{place: {{"forged": tried(forge, place), "moved": tried(os.rename, place, place + "2")}}
          for place in {[str(used), str(other)]}}}
"""
    for name, outcomes in scene.run(plan, code).items():
        assert set(outcomes.values()) <= {"EACCES", "EROFS", "EBUSY"}, (name, outcomes)
    assert list(other.iterdir()) == list(used.iterdir()) == []
