"""Commands try to read the server's list of tokens, with its key, and to plant one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from execserver import runtime_paths
from execserver.runtime_paths import TOKEN_STORE_FILE, ExecServerRuntimePaths
from execserver.sandbox import own_files
from execserver.sandbox.backends import landlock_only
from execserver.sandbox.own_files import keep_own_files
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.host import Host
from tests.support import ways
from tests.support.roots import give, mount
from tests.support.ways import Way

STEAL = """
store = places[0]
config = os.path.dirname(os.path.dirname(store))
def plant(place):
    os.makedirs(place, exist_ok=True)
    with open(place + "/tokens.json", "w") as file:
        file.write("planted")
def move(place):
    os.rename(place, place + ".moved")
    plant(place)
result = {
    "read": tried(os.open, store + "/tokens.json", os.O_RDONLY),
    "list": tried(os.listdir, store),
    "enter": tried(os.chdir, store),
    "link": tried(os.link, store + "/tokens.json", home + "/stolen"),
    "plant": tried(plant, store),
    "move": tried(move, store),
    "move above": tried(move, os.path.dirname(store)),
    "move further above": tried(move, config),
    "remove": tried(os.rmdir, store),
}
"""


class Scene(NamedTuple):
    """A home, and the place of its list of tokens."""

    home: Path
    store: Path
    environ: dict[bytes, bytes]
    way: Way | None = None

    @property
    def file(self) -> Path:
        return self.store / os.fsdecode(TOKEN_STORE_FILE)

    def kept(self, root: str, *mounts: Mount, facts: Facts | None = None) -> SandboxPlan:
        host = Host() if facts is None else facts.noting(Host())
        plan = SandboxPlan(root, mounts, writable=tuple(each.path for each in mounts if each.kind == WRITE))
        return keep_own_files(plan, host, self.environ)

    def fill(self) -> None:
        self.store.mkdir(mode=0o700, parents=True)
        self.file.write_text("secret")
        self.file.chmod(0o600)


def made(home: Path, monkeypatch: pytest.MonkeyPatch, way: Way | None = None) -> Scene:
    home.mkdir()
    monkeypatch.setattr(runtime_paths, "_home", [os.fsencode(home)])
    monkeypatch.setattr(own_files, "_TEMPORARY", ())
    monkeypatch.setattr(own_files, "record_places", lambda _: ())
    monkeypatch.setattr(own_files, "certificate_folder", lambda _: b"/dev/null")  # `test_certificates` has it
    monkeypatch.setattr(own_files, "places_of_the_program", lambda _: [])
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: None))
    store = home / ".config" / "execserver" / "tokens"
    return Scene(home, store, {b"HOME": os.fsencode(home)}, way)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return made(tmp_path / "home", monkeypatch)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way) -> Scene:
    return made(tmp_path / "home", monkeypatch, way)


@pytest.mark.parametrize("root", [ROOT_READ_ONLY, ROOT_WRITABLE])
@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_no_command_reads_or_plants_a_list(
    scene: Scene, way: Way, root: str, writable: bool, there: bool
) -> None:
    if there:
        scene.fill()
    plan = scene.kept(root, *([mount(WRITE, scene.home)] if writable else []))
    for path in (scene.home, *scene.home.rglob("*")):
        give(path, way.user)  # in use the server, which makes them, is that user itself
    code = f"places, home = [{str(scene.store)!r}], {str(scene.home)!r}\n{STEAL}"
    outcomes = ways.run_python(way, plan, code)
    assert set(outcomes.values()) <= {"EROFS", "EBUSY", "EACCES", "ENOENT", "EXDEV", "EPERM"}, outcomes
    assert outcomes["read"] != "ok"
    assert not (scene.home / "stolen").exists()
    assert scene.file.exists() == there
    assert not there or scene.file.read_text() == "secret"


def masks(plan: SandboxPlan) -> list[bytes]:
    return [each.path for each in plan.mounts if each.kind == HIDDEN_DIRECTORY]


def test_a_list_is_masked_wherever_it_could_be_read(files: Scene) -> None:
    files.fill()
    store = os.fsencode(files.store)
    home = mount(READ, files.home)
    for plan in (files.kept(ROOT_READ_ONLY), files.kept(ROOT_WRITABLE), files.kept(ROOT_EMPTY, home)):
        assert masks(plan) == [store]
        assert plan.denied == (store,)
    assert masks(files.kept(ROOT_EMPTY)) == []
    assert masks(files.kept(ROOT_HOST)) == []  # no root of its own: whoever runs there is the user


def test_without_a_list_a_plan_that_only_reads_stays_as_it_is(files: Scene) -> None:
    """Landlock alone could not enforce it otherwise."""
    plan = files.kept(ROOT_READ_ONLY)
    assert plan == SandboxPlan(ROOT_READ_ONLY)
    assert not files.store.exists()
    files.fill()
    assert landlock_only.inexact(files.kept(ROOT_READ_ONLY)) != ""


def test_a_plan_is_made_anew_when_the_first_token_is(files: Scene) -> None:
    facts = Facts()
    files.kept(ROOT_READ_ONLY, facts=facts)
    assert facts.cacheable
    assert facts.hold(Host())
    files.fill()
    assert not facts.hold(Host())


def test_where_it_could_be_written_the_place_is_made_and_masked(files: Scene) -> None:
    plan = files.kept(ROOT_READ_ONLY, mount(WRITE, files.home))
    assert masks(plan) == [os.fsencode(files.store)]
    assert files.store.stat().st_mode & 0o777 == 0o700
    ways_up = [each.path for each in plan.mounts if each.kind == WRITE]
    assert ways_up == [os.fsencode(path) for path in (files.home, files.home / ".config", files.store.parent)]


def test_every_place_that_the_environment_can_name_is_masked(files: Scene, tmp_path: Path) -> None:
    named = {}
    for variable, place in (
        ("EXECSERVER_TOKEN_STORE", "named"),
        ("XDG_CONFIG_HOME", "xdg/execserver/tokens"),
    ):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "tokens.json").touch()
        named[variable.encode()] = os.fsencode(tmp_path / place.partition("/")[0])
    files.fill()
    plan = files._replace(environ={**files.environ, **named}).kept(ROOT_READ_ONLY)
    expected = [tmp_path / "named", tmp_path / "xdg/execserver/tokens", files.store]
    assert masks(plan) == [os.fsencode(path) for path in expected]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can look at everything")
def test_a_place_that_this_user_cannot_come_to_costs_nothing(files: Scene) -> None:
    files.home.chmod(0)
    try:
        facts = Facts()
        assert masks(files.kept(ROOT_READ_ONLY, facts=facts)) == []
        assert facts.cacheable
    finally:
        files.home.chmod(0o700)
