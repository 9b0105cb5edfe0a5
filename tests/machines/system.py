"""What is in a machine beside the kernel: busybox, bash and its libraries, users; kept in a cache.

The cache is outside of the checkout: `$EXECSERVER_MACHINES`, by default `~/.cache/execserver-machines`.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.machines import own_kernel
from tests.machines.initramfs import Files, file, folder, of_folder, symlink
from tools.debian import DEBIAN, UBUNTU, Distribution, Suite, unpack
from tools.problems import Problem

CACHE_VARIABLE = "EXECSERVER_MACHINES"
USER_ID = 1000  # of the ordinary user, `person`
_RELEASE = "bookworm"
_PACKAGES = ("busybox-static", "bash", "libc6", "libtinfo6")
# Of them a machine needs no more; the C library's conversions alone have 10 MiB.
_WANTED = ("/libc.so.6", "/libtinfo.so.6", "/libm.so.6", "/libdl.so.2", "/libpthread.so.0", "/ld-linux")

_UBUNTU_KEYS, _KEYS_RELEASE = "ubuntu-keyring", "trixie"

_USERS = f"root:x:0:0:root:/root:/bin/bash\nperson:x:{USER_ID}:{USER_ID}::/home/person:/bin/bash\n"
_GROUPS = f"root:x:0:\ntty:x:5:\nperson:x:{USER_ID}:\n"


def cache() -> Path:
    """Return the folder of what is downloaded; made if need be."""
    given = os.environ.get(CACHE_VARIABLE)
    found = Path(given) if given else Path.home() / ".cache" / "execserver-machines"
    found.mkdir(parents=True, exist_ok=True)
    return found


def system(machine: str) -> Files:
    """Return a small system for a kind of processor.  Raises Problem where apt cannot get it."""
    files: Files = {}
    for name in _PACKAGES:
        files.update(_wanted(unpacked(name, machine)))
    return {
        **files,
        **{link: symlink(f"usr/{link}") for link in ("bin", "lib", "lib64", "sbin")},
        "usr/lib64": folder(),
        "usr/bin/sh": symlink("busybox"),
        "etc/passwd": file(_USERS.encode()),
        "etc/group": file(_GROUPS.encode()),
        "home/person": folder(),
    }


def unpacked(package: str, machine: str) -> Files:
    """Return what is in a package, below /usr; downloaded and unpacked once.  Raises Problem."""
    folder = cache() / f"system-{_RELEASE}-{machine}" / package
    if not folder.is_dir():
        unpack(Suite(cache(), DEBIAN, _RELEASE, machine).fetch(package), folder)
    found = of_folder(folder)
    return {name if name.startswith("usr/") else f"usr/{name}": entry for name, entry in found.items()}


def kernel(distribution: Distribution, release: str, package: str, machine: str) -> Path:
    """Return a kernel, downloaded and unpacked once, or built once from its source.  Raises Problem."""
    if own_kernel.is_wanted(package):
        suite = Suite(cache(), distribution, release, machine)
        return own_kernel.kernel(suite, package, cache() / "kernels")
    found = cache() / "kernels" / f"{release}-{package}-{machine}"
    if not found.is_dir():
        suite = Suite(cache(), distribution, release, machine)
        unpack(suite.fetch(suite.kernel_package(package)), found)
    image = next(iter(sorted(found.rglob("vmlinu*"))), None)
    if image is None:
        raise Problem(f"there is no kernel in {package}", f"remove {found} and start again")
    return image


def ubuntu() -> Distribution:
    """Return Ubuntu, whose keys come in a package of Debian.  Raises Problem."""
    found = cache() / _UBUNTU_KEYS
    if not found.is_dir():
        unpack(Suite(cache(), DEBIAN, _KEYS_RELEASE, os.uname().machine).fetch(_UBUNTU_KEYS), found)
    return UBUNTU._replace(keyring=str(found / UBUNTU.keyring.lstrip("/")))


def _wanted(found: Files) -> Files:
    """Return what a machine needs of a package."""
    wanted = {}
    for path, entry in found.items():
        is_program = path in ("usr/bin/busybox", "usr/bin/bash")
        is_library = path.startswith("usr/lib") and any(each in path for each in _WANTED)
        if is_program or is_library:
            wanted[path] = entry
    return wanted
