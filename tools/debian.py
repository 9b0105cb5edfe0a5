"""Packages of a distribution that this machine need not run, fetched with apt's own client.

apt gets a private folder (sources, lists, archives), and nothing of the machine's own state changes.  Where
the packages come from the machine's apt knows already; for a distribution that it does not know, a variable
names the place, e.g. `EXECSERVER_UBUNTU_MIRROR`.  apt checks signatures as ever.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tools.environment import locked
from tools.problems import Problem

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Debian's name of what `uname -m` says

_LIST_WAIT_S, _FETCH_WAIT_S = 300, 900
_DIGITS = 64  # of SHA-256
_KERNEL = re.compile(r"^\s*Depends: (linux-(?:image|binary)-\S+)$", re.MULTILINE)


class Pin(NamedTuple):
    """One package: its version, and the SHA-256 of its file."""

    name: str
    version: str
    digest: str


class Distribution(NamedTuple):
    """Who signs the packages, and the variable that names a mirror."""

    origin: str
    keyring: str
    variable: str


DEBIAN = Distribution("Debian", "/usr/share/keyrings/debian-archive-keyring.gpg", "EXECSERVER_DEBIAN_MIRROR")
UBUNTU = Distribution("Ubuntu", "/usr/share/keyrings/ubuntu-archive-keyring.gpg", "EXECSERVER_UBUNTU_MIRROR")


class Suite:
    """One release of a distribution for one kind of processor; its folder is made when it is used.

    Every method raises Problem where apt cannot do it.
    """

    def __init__(self, folder: Path, distribution: Distribution, name: str, machine: str) -> None:
        self._folder = folder / f"{name}-{machine}"
        self._distribution = distribution
        self._name = name
        self._architecture = ARCHITECTURES[machine]

    def kernel_package(self, name: str) -> str:
        """Follow the names that stand for the newest kernel of a kind, down to the package that holds it."""
        self._prepare()
        while found := _KERNEL.search(self._apt("apt-cache", "depends", "--important", name)):
            name = found[1]
        return name

    def fetch(self, package: str) -> Path:
        """Return the file of a package (`name` or `name=version`), downloaded once."""
        self._prepare()
        kept = self._folder / "files" / re.sub(r"[^\w.+=-]", "_", package)
        if not kept.exists():
            fresh = self._folder / "fresh"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            self._apt("apt-get", "download", package, folder=fresh, limit_s=_FETCH_WAIT_S)
            kept.parent.mkdir(exist_ok=True)
            next(fresh.glob("*.deb")).replace(kept)
        return kept

    def fetch_pinned(self, pin: Pin) -> Path:
        """Return the file of exactly that package; what is another one is refused."""
        path = self.fetch(f"{pin.name}={pin.version}")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != pin.digest:
            path.unlink()
            raise Problem(
                f"{pin.name} {pin.version} is not the package that was pinned (SHA-256 {found})",
                "look at where apt gets it from",
            )
        return path

    def pin(self, name: str) -> Pin:
        """Return the pin of what is the newest version just now."""
        self._prepare()
        shown = self._apt("apt-cache", "show", "--no-all-versions", name)
        said = dict(re.findall(r"^(Version|SHA256): (\S+)$", shown, re.MULTILINE))
        if len(said.get("SHA256", "")) != _DIGITS:
            raise Problem(f"apt knows no {name} in {self._name}", "look at the name")
        return Pin(name, said["Version"], said["SHA256"])

    def _prepare(self) -> None:
        """Have apt read the lists of packages, once in the life of the folder."""
        if (self._folder / "ready").exists():
            return
        if shutil.which("apt-get") is None:
            raise Problem("there is no apt here, which fetches the packages", "do this on Debian or Ubuntu")
        for name in ("lists/partial", "archives/partial"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        with locked(self._folder, f"waiting for another apt in {self._folder}"):
            (self._folder / "sources.list").write_text(self._sources())
            self._apt("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any")
            (self._folder / "ready").touch()

    def _sources(self) -> str:
        keyring = self._distribution.keyring
        options = f"arch={self._architecture}" + (f" signed-by={keyring}" if Path(keyring).exists() else "")
        return "".join(f"deb [{options}] {place} main\n" for place in self._places())

    def _places(self) -> list[str]:
        """Return `URI RELEASE` of this suite, its updates and its security updates, as far as known."""
        given = os.environ.get(self._distribution.variable)
        if given:
            return [f"{given} {self._name}"]
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(ORIGIN)"]
        command += ["Created-By: Packages"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        known = [line.split() for line in sorted(set(shown.splitlines()))]
        ours = [(uri, release) for uri, release, *origin in known if origin == [self._distribution.origin]]
        same = [f"{uri} {release}" for uri, release in ours if release.partition("-")[0] == self._name]
        # Of another release of the machine's distribution: from where its main part comes.
        main = [uri for uri, release in ours if "-" not in release]
        if not same and not main:
            raise Problem(
                f"apt knows no place to get {self._distribution.origin}'s packages from",
                f"name its mirror in {self._distribution.variable}",
            )
        return same or [f"{main[0]} {self._name}"]

    def _apt(
        self, program: str, *words: str, folder: Path | None = None, limit_s: float = _LIST_WAIT_S
    ) -> str:
        own = self._folder
        settings = {
            "Dir::Etc::SourceList": own / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": own / "lists",
            "Dir::State::Status": "/dev/null",
            "Dir::Cache": own,
            "Dir::Cache::Archives": own / "archives",
            "APT::Architecture": self._architecture,
            "APT::Architectures": self._architecture,
            "APT::Update::Post-Invoke-Success": "",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        try:
            done = subprocess.run(
                [program, *options, *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Problem(f"{program} took more than {limit_s:.0f} s", "look at the network") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise Problem(
                f"{program} {words[0]} failed: {lines[-1]}", f"look at {own}, or remove it and start again"
            )
        return done.stdout


def unpack(package: Path, folder: Path) -> None:
    """Unpack what a package holds into a folder.  Raises Problem."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["dpkg-deb", "--extract", str(package), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Problem(f"{package} cannot be unpacked: {done.stderr.strip()}", "remove it and start again")
