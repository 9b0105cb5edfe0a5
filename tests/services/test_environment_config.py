"""Which configuration files count for a directory; the form of the answers is in the recorded traffic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.protocol.discovery import ConfigLayer, EnvironmentConfigReadParams
from execserver.protocol.errors import InternalError
from execserver.protocol.paths import PathUri
from execserver.services.files.filesystem import FileService
from execserver.services.machine import environment_config
from execserver.services.machine.environment_config import ConfigFiles
from execserver.settings import Settings


class Machine:
    """Folders of a user, an administrator and projects, and the reader of their files."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = FileService(Settings())
        environ = {b"HOME": os.fsencode(self.root / "home")}
        self.reader = ConfigFiles(self.files, environ, os.fsencode(self.root / "etc"))

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def trust(self, name: str, level: str = "trusted", more: str = "") -> None:
        """Let the user say something about a folder."""
        self.write(
            "home/.codex/config.toml", f'{more}[projects."{self.root / name}"]\ntrust_level = "{level}"\n'
        )

    def layers(self, cwd: str, *, requirements: bool = False) -> tuple[ConfigLayer, ...]:
        """Return the layers with a model for a directory."""
        answer = self.reader.read(
            EnvironmentConfigReadParams(
                cwd=PathUri.from_native(os.fsencode(self.root / cwd)),
                config_paths=(("model",),),
                requirements_paths=(("model",),) if requirements else (),
            )
        )
        return answer.config.layers

    def models(self, cwd: str) -> list[str]:
        """Return the models of the layers for a directory, lowest first."""
        return [layer.toml.removeprefix('model = "').removesuffix('"\n') for layer in self.layers(cwd)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A project `ws` with a folder `sub`, both with a file."""
    made = Machine(tmp_path)
    made.write("ws/.codex/config.toml", 'model = "ws"\n')
    made.write("ws/sub/.codex/config.toml", 'model = "sub"\n')
    (made.root / "ws/sub/deep").mkdir()
    yield made
    made.files.close()


def make_repository(machine: Machine) -> None:
    (machine.root / "ws/.git").mkdir()


def test_without_a_marker_the_directory_is_its_own_project(machine: Machine) -> None:
    # Not .git, which is in /tmp while somebody's sandboxed command runs that may write there.
    machine.trust("ws", more='project_root_markers = [".hg"]\n')
    assert machine.models("ws") == ["ws"]
    assert machine.models("ws/sub") == []


def test_a_trusted_repository_counts_from_its_root_down(machine: Machine) -> None:
    make_repository(machine)
    assert machine.models("ws/sub") == []
    machine.trust("ws")
    assert machine.models("ws/sub/deep/nowhere") == ["ws", "sub"]
    machine.trust("ws", "untrusted")
    assert machine.models("ws/sub") == []
    machine.trust("ws/sub")
    assert machine.models("ws/sub/deep") == ["sub"]


def test_a_folder_the_user_does_not_trust_is_left_out_of_a_trusted_project(machine: Machine) -> None:
    make_repository(machine)
    distrust = f'[projects."{machine.root}/ws/sub"]\ntrust_level = "untrusted"\n'
    machine.trust("ws", more=distrust)
    assert machine.models("ws/sub") == ["ws"]


def test_other_markers_end_the_project_elsewhere(machine: Machine) -> None:
    make_repository(machine)
    machine.write("ws/sub/MARK", "")
    machine.trust("ws", more='project_root_markers = ["MARK"]\n')
    assert machine.models("ws/sub/deep") == ["sub"]
    machine.trust("ws", more="project_root_markers = []\n")
    assert machine.models("ws/sub") == ["sub"]


def test_a_project_is_trusted_by_its_other_name_too(machine: Machine) -> None:
    make_repository(machine)
    (machine.root / "link").symlink_to("ws")
    machine.trust("ws")
    assert machine.models("link/sub") == ["ws", "sub"]
    machine.trust("link")
    assert machine.models("link/sub") == ["ws", "sub"]


def test_a_worktree_is_trusted_with_its_repository(machine: Machine) -> None:
    make_repository(machine)
    machine.write("tree/.git", f"gitdir: {machine.root}/ws/.git/worktrees/tree\n")
    machine.write("tree/.codex/config.toml", 'model = "tree"\n')
    machine.trust("ws")
    assert machine.models("tree") == ["tree"]
    machine.write("tree/.git", "x" * 10_000)
    assert machine.models("tree") == []


def test_the_users_own_folder_is_no_project(machine: Machine) -> None:
    machine.trust("home", more='model = "user"\n')
    assert machine.models("home") == ["user"]


def test_codex_home_moves_the_users_file(machine: Machine) -> None:
    machine.write("other/config.toml", 'model = "other"\n')
    environ = {b"HOME": b"/nowhere", b"CODEX_HOME": os.fsencode(machine.root / "other")}
    machine.reader = ConfigFiles(machine.files, environ, b"/nowhere")
    assert machine.models("ws") == ["other"]


def test_a_broken_file_of_a_project_matters_only_where_it_is_trusted(machine: Machine) -> None:
    machine.write("ws/.codex/config.toml", "model =\n")
    assert machine.models("ws") == []
    machine.trust("ws")
    with pytest.raises(InternalError, match=r"Error parsing project config file .*at line 1, column 8"):
        machine.models("ws")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff", "Failed to read config file .*: invalid utf-8 sequence of 1 bytes from index 0"),
        (b"x" * (environment_config.MAX_FILE_BYTES + 1), "it has more than 1048576 bytes"),
        (b"a = " + b"[" * 100_000, "config.toml:1:1: too many values in each other"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(machine: Machine, content: bytes, text: str) -> None:
    machine.write("home/.codex/config.toml", content)
    with pytest.raises(InternalError, match=text):
        machine.models("ws")


def test_a_broken_requirements_file_is_an_error_when_it_is_asked_for(machine: Machine) -> None:
    machine.write("etc/requirements.toml", "model =\n")
    assert machine.layers("ws") == ()
    with pytest.raises(InternalError, match="failed to parse requirements layer"):
        machine.layers("ws", requirements=True)


def test_a_large_file_is_parsed_beside_the_event_loop(machine: Machine) -> None:
    machine.write("home/.codex/config.toml", 'model = "big"\n' + "# comment\n" * 5_000)
    assert machine.models("ws") == ["big"]
