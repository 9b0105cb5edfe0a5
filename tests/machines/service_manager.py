"""A system with systemd, which runs in a pid namespace of a virtual machine: units, control groups, journal.

    outcome = run(machine, with_systemd({"etc/systemd/system/x.service": ...}), BOOT)

systemd starts `check.target`; what that wants writes to /root/said, and ends all with `systemctl exit`.
It is told that it is in a container, since the first process of the machine is another; its control groups
are the machine's, all of cgroup v2.
"""

from __future__ import annotations

from tests.machines.initramfs import Files, file, folder
from tests.machines.system import system, unpacked

# systemd, and the libraries that its manager, its journal and its tools load.
_PACKAGES = (
    *("systemd", "libsystemd-shared", "libsystemd0", "libacl1", "libaudit1", "libcap2", "libcap-ng0"),
    *("libcrypt1", "libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5", "libmount1", "libblkid1"),
    *("libselinux1", "libpcre2-8-0", "libzstd1", "libssl3", "libseccomp2", "libpam0g", "libapparmor1"),
    *("libkmod2", "libip4tc2"),
)
_LEFT_OUT = ("usr/share/", "usr/lib/x86_64-linux-gnu/security/")
BOOT = """
mkdir -p /run/systemd/system /etc/systemd/system
env -i container=other PATH=$PATH timeout -s KILL 800 unshare -p -f -m --mount-proc \
    /lib/systemd/systemd --system --unit=check.target --show-status=no >/root/manager 2>&1
cat /root/said
"""


def with_systemd(files: Files) -> Files:
    """Return a small system with systemd and these files.  Raises Problem where apt cannot get it."""
    found: Files = {}
    for name in _PACKAGES:
        found.update(
            (path, entry)
            for path, entry in unpacked(name, "x86_64").items()
            if not path.startswith(_LEFT_OUT)
        )
    return {
        **system("x86_64"),
        **found,
        "etc/machine-id": file(b"0123456789abcdef0123456789abcdef\n"),
        "var/log": folder(),
        "var/cache": folder(),
        **files,
    }
