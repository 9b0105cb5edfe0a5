"""Packages from a distribution that the machine does not run, with apt and an archive of the test's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path

import pytest

from tools.debian import ARCHITECTURES, Distribution, Pin, Suite, unpack
from tools.problems import Problem

MACHINE = next(machine for machine in ARCHITECTURES if machine != os.uname().machine)
ARCHITECTURE = ARCHITECTURES[MACHINE]
SUITE = "newest"
VARIABLE = "EXECSERVER_TEST_MIRROR"
DEPENDS = {"linux-image-test": "linux-image-9.1-test (= 9.1)", "linux-image-9.1-test": "kmod"}


def run(*command: str | Path, folder: Path) -> str:
    """Run a program with a keyring of its own; return what it wrote."""
    variables = {**os.environ, "GNUPGHOME": str(folder / "keys")}
    return subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def sha256(data: bytes) -> str:
    """Return a hash in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def paragraph(fields: dict[str, str]) -> str:
    """Return fields as Debian writes them."""
    return "".join(f"{field}: {value}\n" for field, value in fields.items())


def package(folder: Path, name: str, depends: str) -> str:
    """Make a package that holds one file; return its paragraph in the list of packages."""
    built, file = folder / "built" / name, folder / f"{name}.deb"
    (built / "DEBIAN").mkdir(parents=True)
    (built / "boot").mkdir()
    (built / "boot" / "vmlinuz-test").write_text(name)
    fields = {"Package": name, "Version": "9.1", "Architecture": ARCHITECTURE, "Depends": depends}
    fields |= {"Maintainer": "Nobody <nobody@example.org>", "Description": "a test"}
    (built / "DEBIAN" / "control").write_text(paragraph(fields))
    run("dpkg-deb", "--build", built, file, folder=folder)
    data = file.read_bytes()
    return paragraph({**fields, "Filename": file.name, "Size": str(len(data)), "SHA256": sha256(data)})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """A signed archive with a kernel and the package that stands for the newest one."""
    for program in ("apt-get", "dpkg-deb", "gpg"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    folder = tmp_path_factory.mktemp("archive")
    (folder / "keys").mkdir(mode=0o700)
    make = ("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "test@example.org", "ed25519")
    run(*make, folder=folder)
    run("gpg", "--output", folder / "ring.gpg", "--export", "test@example.org", folder=folder)
    listed = "\n".join(package(folder, name, depends) for name, depends in DEPENDS.items()).encode()
    dists, place = folder / "dists" / SUITE, f"main/binary-{ARCHITECTURE}/Packages"
    (dists / place).parent.mkdir(parents=True)
    (dists / place).write_bytes(listed)
    fields = {"Suite": SUITE, "Codename": SUITE, "Components": "main", "Architectures": ARCHITECTURE}
    fields |= {"Date": formatdate(usegmt=True), "SHA256": f"\n {sha256(listed)} {len(listed)} {place}"}
    (dists / "Release").write_text(paragraph(fields))
    run("gpg", "--batch", "--clearsign", "--output", dists / "InRelease", dists / "Release", folder=folder)
    run("gpgconf", "--kill", "gpg-agent", folder=folder)
    return Distribution("Nobody's", str(folder / "ring.gpg"), VARIABLE)


@pytest.fixture
def suite(archive: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The archive as apt sees it from a private folder."""
    monkeypatch.setenv(VARIABLE, f"file:{Path(archive.keyring).parent}")
    return Suite(tmp_path, archive, SUITE, MACHINE)


def test_the_newest_kernel_is_fetched_and_unpacked(suite: Suite, tmp_path: Path) -> None:
    name = suite.kernel_package("linux-image-test")
    assert name == "linux-image-9.1-test"
    file = suite.fetch(name)
    unpack(file, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "boot" / "vmlinuz-test").read_text() == name
    before = file.stat().st_mtime_ns
    assert suite.fetch(name).stat().st_mtime_ns == before


def test_a_pin_is_of_the_package_as_it_is(suite: Suite) -> None:
    pin = suite.pin("linux-image-9.1-test")
    assert (pin.name, pin.version) == ("linux-image-9.1-test", "9.1")
    assert sha256(suite.fetch_pinned(pin).read_bytes()) == pin.digest


def test_another_package_than_the_pinned_one_is_refused(suite: Suite) -> None:
    with pytest.raises(Problem, match="is not the package that was pinned"):
        suite.fetch_pinned(Pin("linux-image-test", "9.1", "0" * 64))
    with pytest.raises(Problem, match="apt-get download failed"):
        suite.fetch_pinned(Pin("linux-image-test", "9.0", "0" * 64))


def test_an_archive_that_somebody_else_has_signed_is_refused(
    archive: Distribution, suite: Suite, tmp_path: Path
) -> None:
    other = tmp_path / "other.gpg"
    other.write_bytes(b"")
    stranger = Suite(tmp_path / "stranger", archive._replace(keyring=str(other)), SUITE, MACHINE)
    with pytest.raises(Problem, match="apt-get update failed"):
        stranger.fetch("linux-image-test")


def test_a_distribution_that_apt_does_not_know_needs_a_mirror(
    archive: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Problem, match="apt knows no place") as caught:
        Suite(tmp_path, archive, SUITE, MACHINE).fetch("linux-image-test")
    assert caught.value.cure == f"name its mirror in {VARIABLE}"
