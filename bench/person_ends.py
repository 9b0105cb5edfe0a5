"""Both ways to a machine for `bench client`: our server and an sshd of its own, on loopback or far away.

Far away is a second network namespace of this machine, behind 20 ms of delay and 1 % of lost packets each
way.  Keys, configuration and files of sshd are in a temporary folder; nothing of the user's is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.delayed_wire import DEVICE, enter
from bench.server import Server

_SSHD = "/usr/sbin/sshd"
_SSHD_FOLDER = "/run/sshd"  # root's sshd wants it, and only the system's own start makes it
_WITH_FOLDER = (
    "unshare",
    "-m",
    "sh",
    "-c",
    'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" "$@"',
)
_WAIT_S = 20.0
_DELAY_MS, _LOSS_PERCENT = "20", "1"  # each way
_NEAR, _FAR = "10.231.77.1", "10.231.77.2"
# Sends as many bytes as the client asks for, after one byte that says it is there.
_SOURCE = """
import socket, sys, threading
def serve(peer):
    count = int(peer.recv(64) or 0)
    peer.sendall(b"!")
    block = bytes(1 << 20)
    while count > 0:
        peer.sendall(block[:count])
        count -= len(block)
    peer.close()
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Missing(Exception):
    """Something that the measurement needs is not here; the text says what."""


class Network(NamedTuple):
    """Where the servers are; `command` starts a program there, `wire` is the process that carries packets."""

    name: str
    host: str
    command: tuple[str, ...] = ()
    wire: int = 0

    @property
    def is_far(self) -> bool:
        """True with delay and loss."""
        return self.wire > 0

    def cut(self, *, lost: bool) -> None:
        """Lose every packet, or only the usual ones again."""
        os.kill(self.wire, signal.SIGUSR1 if lost else signal.SIGUSR2)


class Ends(NamedTuple):
    """What the rows use: the box, ssh's configuration, a port there that serves bytes, a folder for files."""

    program: str
    box: str
    ssh_config: Path
    source_port: int
    folder: Path
    network: Network

    def ssh(self, *words: str, master: bool = True) -> list[str]:
        """Return the words for a command of ssh, over the open connection or a new one."""
        return ["ssh", "-F", str(self.ssh_config), *([] if master else ["-oControlPath=none"]), *words]


@contextmanager
def loopback() -> Iterator[Network]:
    """Yield the network without delay."""
    yield Network("loopback", "127.0.0.1")


@contextmanager
def far_away() -> Iterator[Network]:
    """Yield the delayed network; this process stays at its near end.  Raises Missing."""
    if os.geteuid():
        raise Missing("network namespaces need root")
    if not shutil.which("ip"):
        raise Missing("there is no `ip`: install iproute2")
    near, far = (f"bench-{end}-{os.getpid()}" for end in ("near", "far"))
    with ExitStack() as stack:
        for name in (near, far):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        command = [sys.executable, "-m", "bench.delayed_wire", near, far, _DELAY_MS, _LOSS_PERCENT]
        wire = stack.enter_context(_child(command))
        if wire.stdout is None or not wire.stdout.readline():
            raise Missing("TUN devices cannot be made here")
        for name, address in ((near, _NEAR), (far, _FAR)):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            for device in (DEVICE, "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")
        _enter(near)
        yield Network("40 ms, 1 % loss", _FAR, ("ip", "netns", "exec", far), wire.pid)


@contextmanager
def serving(program: str, network: Network, folder: Path) -> Iterator[Ends]:
    """Start all that serves there.  Raises Missing."""
    for needed in (_SSHD, "ssh", "scp", "ssh-keygen"):
        if not shutil.which(needed):
            raise Missing(f"there is no `{needed}`: install openssh-server and openssh-client")
    with ExitStack() as stack:
        command = [*network.command, program, "--listen", f"ws://{network.host}:0"]
        allowed = ["--insecure-listen", "--allow-forward", "any"] if network.is_far else []
        box = stack.enter_context(Server("ours", " ".join([*command, *allowed]), None)).url
        source = stack.enter_context(_child([*network.command, sys.executable, "-c", _SOURCE, network.host]))
        assert source.stdout is not None
        port = int(source.stdout.readline())
        config = _start_sshd(stack, network, folder)
        ends = Ends(program, box, config, port, folder, network)
        _until_connected(ends)
        stack.callback(subprocess.run, ends.ssh("-O", "exit", "box"), capture_output=True, check=False)
        yield ends


def _start_sshd(stack: ExitStack, network: Network, folder: Path) -> Path:
    for name in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    port = _free_port()
    daemon = folder / "sshd_config"
    daemon.write_text(
        f'HostKey "{folder}/host"\nListenAddress {network.host}:{port}\nPidFile none\nUsePAM no\n'
        f'StrictModes no\nPermitRootLogin yes\nMaxStartups 100\nAuthorizedKeysFile "{folder}/authorized"\n'
        "Subsystem sftp internal-sftp\n"
    )
    config = folder / "ssh_config"
    config.write_text(
        f'Host box\nHostName {network.host}\nPort {port}\nIdentityFile "{folder}/user"\nIdentitiesOnly yes\n'
        f"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        f'ControlMaster auto\nControlPath "{folder}/master"\nControlPersist yes\n'
    )
    wrapped = () if os.geteuid() or os.path.isdir(_SSHD_FOLDER) else _WITH_FOLDER
    stack.enter_context(_child([*network.command, *wrapped, _SSHD, "-D", "-f", str(daemon)]))
    return config


def _until_connected(ends: Ends) -> None:
    """Open the master connection that later commands share."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        done = subprocess.run(
            ends.ssh("box", "true"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise Missing("sshd cannot be reached")
        time.sleep(0.2)


@contextmanager
def _child(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.terminate()


def _enter(namespace: str) -> None:
    try:
        enter(namespace)
    except OSError as error:
        raise Missing(f"this process cannot enter a network namespace: {error.strerror}") from None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"`{' '.join(command)}` fails here: {done.stderr.strip()}")
