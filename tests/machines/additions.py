"""What some machines have besides: bubblewrap, or a policy of SELinux that refuses user namespaces."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.machines.initramfs import Files, file
from tests.machines.system import cache, unpacked
from tools.problems import Problem

_COMPILER = ("secilc", "libsepol2")
_BUBBLEWRAP = ("bubblewrap", "libcap2", "libselinux1", "libpcre2-8-0")
_LIBRARIES = ("/libcap.so", "/libselinux.so", "/libpcre2-8.so")
POLICY = "etc/selinux.policy"  # in the machine
_INITIAL = """kernel security unlabeled fs file file_labels init any_socket port netif netmsg node igmp_packet
icmp_socket tcp_socket sysctl_modprobe sysctl sysctl_fs sysctl_kernel sysctl_net sysctl_net_unix sysctl_vm
sysctl_dev kmod policy scmp_packet devnull"""  # the kernel's numbers of them are their places here
_SIDS = "\n".join(
    f"(sid {name}) (sidcontext {name} (everybody anyone program range))" for name in _INITIAL.split()
)
# What a policy does not know is allowed; of what this one knows, it does not allow to make user namespaces.
_TEXT = f"""
(handleunknown allow)
(mls true)
(class process (transition dyntransition))
(class user_namespace (create))
(classorder (process user_namespace))
(sensitivity s0)
(sensitivityorder (s0))
(category c0)
(categoryorder (c0))
(sensitivitycategory s0 (c0))
(level low (s0))
(levelrange range (low low))
(user everybody)
(role anyone)
(type program)
(roletype anyone program)
(userrole everybody anyone)
(userlevel everybody low)
(userrange everybody range)
(allow program self (process (transition dyntransition)))
{_SIDS}
(sidorder ({_INITIAL}))
"""


def nothing(architecture: str) -> Files:
    """Return nothing."""
    return {}


def bubblewrap(architecture: str) -> Files:
    """Return Debian's bubblewrap with its libraries.  Raises Problem."""
    files: Files = {}
    for name in _BUBBLEWRAP:
        for path, entry in unpacked(name, architecture).items():
            if path == "usr/bin/bwrap" or any(each in path for each in _LIBRARIES):
                files[path] = entry
    return files


def refusing_policy(architecture: str) -> Files:
    """Return a policy of SELinux, compiled here and the same for every processor.  Raises Problem."""
    here = os.uname().machine
    found = {path: entry for name in _COMPILER for path, entry in unpacked(name, here).items()}
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        place = Path(folder)
        for path, entry in found.items():
            if path == "usr/bin/secilc" or "/libsepol.so" in path:
                (place / Path(path).name).write_bytes(entry.data)
        (place / "secilc").chmod(0o755)
        (place / "policy.cil").write_text(_TEXT)
        command = ["./secilc", "-o", "policy", "-f", "/dev/null", "-c", "31", "policy.cil"]
        variables = {**os.environ, "LD_LIBRARY_PATH": folder}
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Problem(f"the policy cannot be compiled: {done.stderr.strip()}", "look at its text")
        return {POLICY: file((place / "policy").read_bytes())}
