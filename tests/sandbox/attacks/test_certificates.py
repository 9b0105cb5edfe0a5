"""Commands try to have another process trust a file of theirs, or certificates written elsewhere.

The file that a process with masked credentials trusts is in a folder of CODEX_HOME, which a policy may make
writable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from execserver import runtime_paths
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import own_files
from execserver.sandbox.backends import landlock_only
from execserver.sandbox.own_files import keep_own_files, show_certificates
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    PlanRefused,
    SandboxPlan,
)
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.host import Host
from tests.support import ways
from tests.support.roots import give, mount
from tests.support.ways import Way

REPLACE = """
def write(place):
    with open(place, "w") as file:
        file.write("planted")
def swap(place):
    os.rename(place, place + ".moved")
    os.symlink(elsewhere, place)
def over(place):
    write(outside + "/own.pem")
    os.rename(outside + "/own.pem", place)
result = {
    "written": tried(write, bundle),
    "replaced": tried(over, bundle),
    "removed": tried(os.unlink, bundle),
    "made": tried(write, folder + "/ca-bundle-own.pem"),
    "folder": tried(swap, folder),
    "folder removed": tried(os.rmdir, folder),
    "mode": tried(os.chmod, folder, 0o777),
    "folder above": tried(swap, os.path.dirname(folder)),
}
"""


def noting() -> Host:
    """Return the host as the server plans for it: one that remembers what was missing."""
    return Facts().noting(Host())


class Scene(NamedTuple):
    """A workspace with CODEX_HOME in it, and the folder of certificates there."""

    work: Path
    folder: Path
    environ: dict[bytes, bytes]

    def kept(self, root: str, *mounts: Mount) -> SandboxPlan:
        writable = tuple(each.path for each in mounts if each.kind == WRITE)
        return keep_own_files(SandboxPlan(root, mounts, writable=writable), noting(), self.environ)

    def shown(self, root: str, *mounts: Mount) -> SandboxPlan:
        """Return the plan of a process that is to trust a file there."""
        return show_certificates(self.kept(root, *mounts), noting(), os.fsencode(self.folder))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(runtime_paths, "_home", [b""])
    for name in ("record_places", "places_of_the_program", "token_stores"):
        monkeypatch.setattr(own_files, name, lambda _: [])
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: None))
    home = work / "codex"
    return Scene(work, home / "proxy", {b"CODEX_HOME": os.fsencode(home)})


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_WRITABLE])
@pytest.mark.parametrize("there", [False, True])
def test_no_command_replaces_what_another_process_trusts(
    scene: Scene, way: Way, root: str, there: bool
) -> None:
    elsewhere = scene.work / "elsewhere"
    elsewhere.mkdir()
    bundle = scene.folder / "ca-bundle-00.pem"
    if there:
        scene.folder.mkdir(parents=True)
        bundle.write_text("ours")
    plan = scene.kept(root, mount(WRITE, scene.work))
    if not there:  # the server makes the folder, and later the file
        bundle.write_text("ours")
    for path in (scene.work, *scene.work.rglob("*")):
        give(path, way.user)  # in use the server, which makes them, is that user itself
    code = (
        f"folder, bundle = {str(scene.folder)!r}, {str(bundle)!r}\n"
        f"elsewhere, outside = {str(elsewhere)!r}, {str(scene.work)!r}\n{REPLACE}"
    )
    outcomes = ways.run_python(way, plan, code)
    assert set(outcomes.values()) <= {"EROFS", "EBUSY", "EXDEV", "EACCES", "EPERM"}, outcomes
    assert [path.name for path in scene.folder.iterdir()] == [bundle.name]
    assert bundle.read_text() == "ours"
    assert not scene.folder.is_symlink()
    assert list(elsewhere.iterdir()) == []


def test_landlock_refuses_to_let_the_folder_be_written(scene: Scene) -> None:
    plan = scene.kept(ROOT_READ_ONLY, mount(WRITE, scene.work))
    assert landlock_only.inexact(plan) == "it cannot keep parts of a writable folder read-only"


def test_a_symlink_in_its_place_that_a_command_could_replace_refuses_the_policy(scene: Scene) -> None:
    scene.folder.parent.mkdir()
    scene.folder.symlink_to(scene.work)
    with pytest.raises(PlanRefused, match="codex/proxy is a symlink in a writable folder; remove it"):
        scene.kept(ROOT_READ_ONLY, mount(WRITE, scene.work))
    assert scene.kept(ROOT_READ_ONLY) == SandboxPlan(ROOT_READ_ONLY)


def test_where_it_cannot_be_written_nothing_is_made(scene: Scene) -> None:
    for root in (ROOT_READ_ONLY, ROOT_EMPTY, ROOT_HOST):
        assert scene.kept(root) == SandboxPlan(root)
    assert not scene.folder.parent.exists()


def test_a_symlink_to_the_home_is_followed_once(scene: Scene, tmp_path: Path) -> None:
    """Else who can replace it would have another folder protected than the one in use."""
    (tmp_path / "first").mkdir()
    link = tmp_path / "link"
    link.symlink_to("first")
    environ = {b"CODEX_HOME": os.fsencode(link)}
    first = runtime_paths.certificate_folder(environ)
    assert first == os.fsencode(tmp_path / "first" / "proxy")
    link.unlink()
    link.symlink_to(scene.work)
    assert runtime_paths.certificate_folder(environ) == first


def test_a_view_that_shows_little_shows_the_certificates(scene: Scene, way: Way) -> None:
    scene.folder.mkdir(parents=True)
    for name in ("proxy/ca-bundle-00.pem", "auth.json"):
        (scene.folder.parent / name).write_text(name)
    for path in (scene.work, *scene.work.rglob("*")):
        give(path, way.user)
    system = [mount(READ, Path(name)) for name in ("/usr", "/etc") if Path(name).exists()]
    links = [
        Mount("link", os.fsencode(path), os.readlink(path).encode())
        for path in map(Path, ("/bin", "/lib", "/lib64"))
        if path.is_symlink()
    ]
    plan = scene.shown(ROOT_EMPTY, *system, *links)
    assert plan.readable == (os.fsencode(scene.folder),)
    script = f"cd {scene.folder}; cat *.pem; echo > x; test -e ../auth.json || echo; ls .."
    assert ways.run(way, plan, script).out.splitlines() == ["proxy/ca-bundle-00.pem", "proxy"]
    assert not (scene.folder / "x").exists()


def test_a_view_that_shows_them_anyway_stays_as_it_is(scene: Scene) -> None:
    scene.folder.mkdir(parents=True)
    for plan in (
        scene.shown(ROOT_READ_ONLY),
        scene.shown(ROOT_EMPTY, mount(READ, scene.work)),
        scene.shown(ROOT_HOST),
    ):
        assert plan == SandboxPlan(plan.root, plan.mounts)
    written = mount(WRITE, scene.work)
    assert scene.shown(ROOT_READ_ONLY, written) == scene.kept(ROOT_READ_ONLY, written)


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_EMPTY])
@pytest.mark.parametrize("denied", ["codex", "codex/proxy", "codex/proxy/ca-bundle-00.pem"])
def test_a_policy_that_denies_them_is_refused(scene: Scene, root: str, denied: str) -> None:
    scene.folder.mkdir(parents=True)
    (scene.folder / "ca-bundle-00.pem").touch()
    path = scene.work / denied
    hidden = mount(HIDDEN_DIRECTORY if path.is_dir() else HIDDEN_FILE, path)
    with pytest.raises(PlanRefused, match="masked credentials need certificates that the policy denies"):
        scene.shown(root, hidden)
