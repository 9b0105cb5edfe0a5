"""What is tried inside a machine, as its root and as its ordinary user: a line for each check.

    python3 inside.py PROGRAM CHECK...

Runs on the standard library of the distribution, with parts of the tests beside it.  A line is `ok NAME`,
`no NAME: REASON` or `left out NAME: REASON`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.machines import foreign
from tests.support.stdio_peer import StdioPeer

TRANSCRIPTS = ("01-lifecycle", "06-fs")
HIDDEN_TRANSCRIPTS = (
    "01-lifecycle",
    "12-percent-encoding",
)  # where /proc/1, which 06 names, is not seen
SESSIONS = ("initialize", "allowed-runs-outside", "exit-codes", "escalated-exit-code", "prompt-accept")
LIMIT_S = 240.0  # for one program; emulated machines are slow
_UNWATCHED = (
    "no program can be watched here",  # by kernels before 5.9
    "a bubblewrap with the setuid bit cannot build a sandbox whose programs are watched",
)
_ATTACKS = Path(__file__).with_name("attacks.py")
_REFUSED = "but sandboxed requests are refused here"
_RACERS = 2  # first starts at once
_UNPACKING_MIB = 400  # for their trees, and the program's
# A root with nothing but the program and /proc; $1 is its folder, $2... is started in it.  It is no
# chroot, where no user namespaces can be made.
_BARE = """
mount --bind "$1" "$1"
cd "$1"
shift
mount -t proc proc proc
pivot_root . old
exec "$@"
"""


class LeftOut(Exception):
    """A check that says nothing here; the text says why."""


class Failed(Exception):
    """A check that found something; the text says what."""


def self_test(program: str) -> None:
    """The program's own look at the machine; it says so where the doctor knows of no sandbox."""
    done = run([program, "self-test"])
    if done.returncode:
        raise Failed(last_line(done.stdout + done.stderr))
    told = [line for line in run([program, "doctor"]).stdout.splitlines() if "workspace-write" in line]
    if (_REFUSED in done.stdout) != any(line.strip().startswith("NO ") for line in told):
        raise Failed(f"the doctor says {told}, and the self-test {done.stdout.splitlines()[-2:]}")


def first_start(program: str) -> None:
    """Two first starts at once share a tree; as root, what a bare root lacks is named, and not made."""
    if available_mib() < _UNPACKING_MIB:
        raise LeftOut("what is unpacked lies in memory here, and there is too little of it")
    with tempfile.TemporaryDirectory(dir=place(), prefix="first-") as folder:
        variables = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder}
        racers = [start([program, "--version"], variables) for _ in range(_RACERS)]
        ends = [(*racer.communicate(timeout=LIMIT_S), racer.returncode) for racer in racers]
        trees = [path for path in Path(folder).glob("**/boot.py*") if ".new-" not in str(path)]
        reasonless = [line for _, said, _ in ends for line in said.splitlines() if line.endswith(": ")]
        if any(status for *_, status in ends) or reasonless or len(trees) > 1:
            raise Failed(f"first starts at once: {ends}, {len(trees)} trees")
    # A zipapp needs a Python, and the root that one needs is no bare one.
    if not os.getuid() and not is_script(program):
        bare_starts(program)


def is_script(program: str) -> bool:
    """Tell whether a program is started by another one."""
    with Path(program).open("rb") as file:
        return file.read(2) == b"#!"


def available_mib() -> int:
    """Return how much memory there is for whoever wants some, in MiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:"))


def bare_starts(program: str) -> None:
    """Start in a root without /tmp, and in one without /dev.  Raises Failed."""
    with tempfile.TemporaryDirectory(dir=place(os.ST_NOEXEC), prefix="bare-") as folder:
        root = Path(folder)
        for name in ("proc", "old"):
            (root / name).mkdir()
        (root / "execserver").write_bytes(Path(program).read_bytes())
        (root / "execserver").chmod(0o755)
        said = in_root(root, "/execserver", "--version")
        if "/tmp/execserver-0: there is no /tmp" not in said or (root / "tmp").exists():
            raise Failed(f"without /tmp: {said}")
        (root / "tmp").mkdir()
        said = in_root(root, "/execserver", "self-test")
        if "there is no /dev/null" not in said or "mount a /dev" not in said:
            raise Failed(f"the self-test without /dev: {said}")
        said = in_root(root, "/execserver", "doctor")
        if "make /dev there" not in said:
            raise Failed(f"the doctor without /dev: {said}")


def in_root(root: Path, *words: str) -> str:
    """Run a program in another root; return all that it says."""
    done = run(["unshare", "-m", "sh", "-ec", _BARE, "sh", str(root), *words])
    return done.stdout + done.stderr


def replay(program: str) -> None:
    """Recorded traffic of the contract."""
    os.environ["EXECSERVER_PROGRAM"] = program
    from tests.support.server_process import OURS
    from tests.support.stage import play

    os.umask(0o022)
    for name in TRANSCRIPTS if Path("/proc/1").exists() else HIDDEN_TRANSCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            failures = play(f"{name}.0.142.0", Path(folder), OURS)
        if failures:
            raise Failed(f"{name}: {failures[0]}")


def attacks(program: str) -> None:
    """A sandboxed command that tries what it must not be able to do."""
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        ground = Ground(Path(folder))
        python = shutil.which("python3") or sys.executable  # a script where its loader lies elsewhere
        done = ground.sandboxed(program, [python, "-I", "-B", str(_ATTACKS), *ground.words()])
        if done.returncode == 1 and "sandbox" in done.stderr.lower() and not done.stdout:
            raise LeftOut(f"refused: {last_line(done.stderr)}")
        if done.returncode or not done.stdout.strip():
            raise Failed(last_line(done.stderr))
        got_through = [line for line in done.stdout.splitlines() if not line.endswith(": held")]
        if got_through or not ground.is_unharmed():
            raise Failed("; ".join(got_through) or "a file outside was changed")


def architectures(program: str) -> None:
    """Programs of the processor's other architecture, whose calls no filter knows."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        ground, made = Ground(Path(folder)), Path(folder) / "foreign"
        made.write_bytes(foreign.program())
        made.chmod(0o755)
        try:
            outside = subprocess.run([made], check=False).returncode
        except OSError as error:
            raise LeftOut(f"the kernel does not execute one ({error.strerror})") from None
        if outside != foreign.STATUS:
            raise LeftOut(f"one ends with {outside} outside of sandboxes")
        done = ground.sandboxed(program, [str(made)])
        if done.returncode == 1 and "sandbox" in done.stderr.lower():
            raise LeftOut(f"refused: {last_line(done.stderr)}")
        if done.returncode != 128 + foreign.SIGSYS:
            raise Failed(f"one ended with {done.returncode}, not by SIGSYS")


def shell_tool(program: str) -> None:
    """Recorded sessions of the shell tool."""
    from tests.mcp.replaying import RULES, Machine, Replay

    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        machine = Machine(Path(folder))
        machine.make({"default.rules": RULES})
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "SERVER_ONLY": "kept",
            "CODEX_BASH_PATH": "/bin/bash",
            "HOME": f"{folder}/home",
            "CODEX_HOME": f"{folder}/codex",
            "TMPDIR": f"{folder}/tmp",
            # It is unpacked already; once more, on such a machine, takes longer than a start may.
            "EXECSERVER_CACHE_DIR": str(Path.home() / ".cache" / "execserver"),
        }
        for name in SESSIONS:
            with subprocess.Popen(
                [program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            ) as server:
                assert server.stdin is not None
                assert server.stdout is not None
                peer = StdioPeer(os.dup(server.stdin.fileno()), os.dup(server.stdout.fileno()))
                server.stdin.close()
                try:
                    found = Replay(name, peer, machine.places(machine.workdir(name))).play()
                finally:
                    peer.close_input()
                    server.terminate()
                    server.wait(LIMIT_S)
                    peer.close()
            for reason in _UNWATCHED:
                if found and reason in str(found[0].seen):
                    raise LeftOut(f"refused: {reason}")
            if found:
                raise Failed(f"{name}: {found[0].seen}")


class Ground(NamedTuple):
    """A folder with what a sandboxed command may write, and what it must not read or write."""

    root: Path

    def words(self) -> list[str]:
        """Make the files; return what the attacks are told."""
        for name in ("inside", "denied", "outside"):
            (self.root / name).mkdir(exist_ok=True)
        for name in ("denied", "outside"):
            (self.root / name / "secret").write_text(name)
        return [str(self.root)]

    def sandboxed(self, program: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command that may write `inside` and read all but `denied`, without network."""
        self.words()
        entries = [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
            {"path": {"type": "path", "path": str(self.root / "inside")}, "access": "write"},
            {"path": {"type": "path", "path": str(self.root / "denied")}, "access": "none"},
        ]
        profile = {
            "type": "managed",
            "network": "restricted",
            "file_system": {"type": "restricted", "entries": entries},
        }
        inside = str(self.root / "inside")
        alias = self.root / "codex-linux-sandbox"
        if not alias.is_symlink():
            alias.symlink_to(program)
        words = [
            str(alias),
            "--sandbox-policy-cwd",
            inside,
            "--permission-profile",
            json.dumps(profile),
            "--",
        ]
        return run([*words, *command], inside)

    def is_unharmed(self) -> bool:
        """Tell whether everything outside is as it was."""
        names = sorted(path.name for path in (self.root / "outside").iterdir())
        return names == ["secret"] and (self.root / "outside" / "secret").read_text() == "outside"


def place(unwanted: int = 0) -> str:
    """Return a folder for temporary ones, the home if may be; `unwanted` are flags of its mount."""
    for found in (str(Path.home()), tempfile.gettempdir(), "/var/tmp"):
        if os.access(found, os.W_OK) and not os.statvfs(found).f_flag & unwanted:
            return found
    raise LeftOut("there is no folder to write in")


CHECKS: dict[str, Callable[[str], None]] = {
    "first start": first_start,
    "self-test": self_test,
    "replay": replay,
    "attacks": attacks,
    "architectures": architectures,
    "shell tool": shell_tool,
}


def run(command: list[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a program that says something and ends."""
    to_us = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdout=to_us, stderr=to_us, text=True)


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was said"


def report(name: str, program: str) -> str:
    """Make one check; return its line."""
    started = time.monotonic()
    try:
        CHECKS[name](program)
    except LeftOut as reason:
        return f"left out {name}: {reason}"
    except Exception as error:  # whatever it is, the other checks go on
        return f"no {name}: {' '.join(str(error).split())[:300] or type(error).__name__}"
    return f"ok {name}: {time.monotonic() - started:.0f} s"


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Make the checks that are named, or all."""
    program, *names = words
    say(f"pages {os.sysconf('SC_PAGESIZE')}")
    for name in names or CHECKS:
        say(report(name, program))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
