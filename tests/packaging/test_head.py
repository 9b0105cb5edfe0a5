"""Which head the one file gets, and what is said when it is the lesser one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tools.freeze import head, packages
from tools.freeze.archive import TRAILER_BYTES, Payload
from tools.freeze.elf import NotElf, read_elf

LAUNCHER = ROOT / "launcher"
PAYLOAD = Payload(b"packed", "ab" * 16, b"listed\n", 2)


def test_the_launcher_comes_first_and_the_trailer_last(tmp_path: Path) -> None:
    (tmp_path / "launcher").write_bytes(b"launcher")
    made = head.join(LAUNCHER, tmp_path / "launcher", "ld.so", PAYLOAD)
    assert made.startswith(b"launcherpackedlisted\n")
    assert made[-TRAILER_BYTES:].rstrip(b"\0") == b"execserver tree 8 6 " + PAYLOAD.hash.encode() + b" 7 2\n"


def test_the_script_knows_where_its_payload_begins() -> None:
    made = head.join(LAUNCHER, None, "ld.so", PAYLOAD)
    start = int(made.partition(b"start=")[2].split()[0])
    assert made[start - 1 :] == PAYLOAD.data
    assert b"@" not in made.replace(b'"$@"', b"")


def test_without_any_compiler_the_loss_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head, "installed", list)
    monkeypatch.setattr(head, "_packaged", lambda *_: [])
    assert head.compile_launcher(LAUNCHER, tmp_path, "ld.so", tmp_path) is None
    shown = capsys.readouterr().err
    assert "Lost: names forced into argv[0]" in shown
    assert "apt install gcc" in shown


def test_a_compiler_that_fails_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no static library >&2\nexit 1\n")
    broken.chmod(0o755)
    copier = tmp_path / "copier"
    copier.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho none >"$2"\n')
    copier.chmod(0o755)
    tried = [head.Compiler((str(broken),), "broken"), head.Compiler((str(copier),), "copier")]
    monkeypatch.setattr(head, "installed", lambda: tried)
    monkeypatch.setattr(head, "_packaged", lambda *_: [])
    assert head.compile_launcher(LAUNCHER, tmp_path, "ld.so", tmp_path) is None
    assert "broken cannot compile the launcher: no static library" in capsys.readouterr().err


def test_the_installed_compiler_is_enough_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not head.installed():
        pytest.skip("there is no C compiler on this machine")
    monkeypatch.setattr(head, "_packaged", lambda *_: [])
    made = head.compile_launcher(LAUNCHER, tmp_path, "ld.so", tmp_path)
    assert made is not None
    assert read_elf(made).loader is None


def test_the_sandbox_init_is_compiled_without_a_warning_and_needs_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not head.installed() or os.uname().machine not in packages.INIT_MACHINES:
        pytest.skip("there is no C compiler on this machine, or no sandbox init for it")
    monkeypatch.setattr(head, "_INIT_FLAGS", (*head._INIT_FLAGS, "-Werror"))
    made = head.compile_init(LAUNCHER, tmp_path, tmp_path)
    assert made == tmp_path / "sandbox-init"
    assert (read_elf(made).loader, read_elf(made).needed) == (None, ())
    assert made.stat().st_size < 32 * 1024


def test_a_machine_on_which_the_sandbox_init_was_not_played_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_links", lambda *_: pytest.fail("compiled"))
    assert head.compile_init(LAUNCHER, tmp_path, tmp_path, "aarch64") is None


def test_a_sandbox_init_that_cannot_be_compiled_is_left_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head, "INIT_MACHINES", (os.uname().machine,))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such processor >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(head, "installed", lambda: [head.Compiler((str(broken),), "broken")])
    asked: list[str] = []

    def packaged(root: Path, packages: Path, machine: str) -> list[head.Compiler]:
        asked.append(machine)
        return []

    monkeypatch.setattr(head, "_packaged", packaged)
    assert head.compile_init(LAUNCHER, tmp_path, tmp_path) is None
    shown = capsys.readouterr().err
    assert "broken cannot compile the init: no such processor" in shown
    assert "sandboxed commands start in twice the time" in shown
    assert asked == [os.uname().machine]  # where the installed compiler fails


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    with pytest.raises(NotElf, match="is no 64-bit little-endian ELF file"):
        read_elf(tmp_path / "text")
