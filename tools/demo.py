"""Remote mode on this machine, from a token to an edited file, with the time of each step.

    python -m tools.demo PROGRAM...

PROGRAM is the words that start execserver.  A relay, an executor that registers with it, and a client of that
executor, which is this process: three parties that usually are on three machines.  All of it is on loopback,
in a folder of its own, and gone at the end, whatever the end is.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tools.problems import Failed

ENVIRONMENT = "demo"
STEP_LIMIT_S = 30.0
_INTERRUPTED_STATUS = 130
_LAST_WORDS_BYTES = 2000
_BEFORE, _AFTER = b"colour = red\n", b"colour = green\n"
# What the user has set for a real registration, or a proxy, must not lead the demo astray.
_NOT_OURS = ("CODEX_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


class Interrupts:
    """Turns signals into KeyboardInterrupt, but not while something must not be left half done."""

    def __init__(self) -> None:
        self._held = False
        self._came = False

    def install(self) -> None:
        """Take the signals over that end a program, unless they are ignored."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)

    def hold(self) -> None:
        """Only note what comes."""
        self._held = True

    def release(self) -> None:
        """Raise KeyboardInterrupt for what came meanwhile, and at once from now on."""
        self._held = False
        if self._came:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: object) -> None:
        self._came = True
        if not self._held:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()


class Demo:
    """One run: owns two processes, a client and a folder, until `clean_up`."""

    def __init__(self, program: list[str]) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="execserver-demo-"))
        self._token_file = str(self._folder / "tokens.json")
        self._token = ""
        self._url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client: ExecServerClient | None = None

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Return what is done: name and action, which returns what there is to show."""
        return [
            ("make a token for the environment", self.make_token),
            ("start a relay", self.start_relay),
            ("register this machine with it", self.start_executor),
            ("connect through it, end-to-end encrypted", self.connect),
            ("run a command", self.run_command),
            ("write a file", self.write_file),
            ("edit it", self.edit_file),
            ("see the change with a command", self.see_change),
            ("end everything", self.stop),
        ]

    def make_token(self) -> str:
        """Create the one token, for both roles."""
        words = ["relay", "token", "create", "--environment-id", ENVIRONMENT]
        making = self._start("token", [*words, "--token-file", self._token_file])
        shown, _ = making.communicate(timeout=STEP_LIMIT_S)
        if making.returncode:
            raise Failed(f"it ended with status {making.returncode}")
        self._token = shown.decode().strip()
        return f"{self._token[:16]}..., its hash in a file"

    def start_relay(self) -> str:
        """Start the relay on a free port and learn its URL."""
        relay = self._start("relay", ["relay", "--token-file", self._token_file, "--drain", "0"])
        assert relay.stdout is not None
        if not select.select([relay.stdout], [], [], STEP_LIMIT_S)[0]:
            raise Failed("it printed no URL")
        self._url = relay.stdout.readline().decode().strip()
        if not self._url.startswith("http://127.0.0.1:"):
            raise Failed(f"it printed {self._url!r} instead of its URL")
        return self._url

    def start_executor(self) -> str:
        """Start the executor and wait until the relay has it."""
        words = ["--remote", self._url, "--environment-id", ENVIRONMENT, "--log-level", "info"]
        executor = self._start("executor", words, CODEX_API_KEY=self._token)
        deadline = time.monotonic() + STEP_LIMIT_S
        while "execserver_relay_executors 1\n" not in self._metrics():
            if executor.poll() is not None:
                raise Failed(f"it ended with status {executor.returncode}")
            if time.monotonic() > deadline:
                raise Failed("the relay does not see it")
            time.sleep(0.005)
        return f"environment `{ENVIRONMENT}`, no open port"

    def connect(self) -> str:
        """Connect as a user of the environment."""
        from execserver.client import ExecServerClient, RemoteExecServerConnectArgs

        args = RemoteExecServerConnectArgs(url=self._url, environment_id=ENVIRONMENT, token=self._token)
        self._client = ExecServerClient.connect_remote(args)
        return "hybrid handshake: X25519 and ML-KEM-768"

    def run_command(self) -> str:
        """Run `uname` there."""
        return self._run(["uname", "-sr"])

    def write_file(self) -> str:
        """Write a file there."""
        self._connected().write_file(self._file, _BEFORE)
        return f"{self._file}: {_BEFORE.decode().strip()}"

    def edit_file(self) -> str:
        """Read it, change it, write it back."""
        content = self._connected().read_file(self._file)
        if content != _BEFORE:
            raise Failed(f"it holds {content!r}")
        self._connected().write_file(self._file, content.replace(b"red", b"green"))
        return "red -> green"

    def see_change(self) -> str:
        """Let a command print it."""
        shown = self._run(["cat", self._file])
        if shown != _AFTER.decode().strip():
            raise Failed(f"it printed {shown!r}")
        return shown

    def stop(self) -> str:
        """End client, executor and relay; the folder goes in `clean_up`."""
        if self._client is not None:
            self._client.close()
            self._client = None
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.terminate()
            process.wait(STEP_LIMIT_S)
        return ""

    def last_words(self) -> str:
        """Return what the processes said last, each line marked."""
        lines = []
        for name in self._processes:
            text = (self._folder / name).read_bytes()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace")
            lines += [f"\n  {name} | {line}" for line in text.splitlines()]
        return "".join(lines)

    def clean_up(self) -> None:
        """End what runs and remove what is there."""
        INTERRUPTS.hold()
        try:
            if self._client is not None:
                self._client.close()
        finally:
            for process in self._processes.values():
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _file(self) -> str:
        return str(self._folder / "settings.txt")

    def _connected(self) -> ExecServerClient:
        assert self._client is not None
        return self._client

    def _run(self, command: list[str]) -> str:
        done = self._connected().start(command).communicate(None, STEP_LIMIT_S)
        if done.exit_code:
            raise Failed(f"exit code {done.exit_code}: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout.decode("utf-8", "replace").strip()

    def _start(self, name: str, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
        INTERRUPTS.hold()  # a process that was started and not noted would be left behind
        with (self._folder / name).open("wb") as errors:
            process = subprocess.Popen(
                [*self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env={**os.environ, "CODEX_HOME": str(self._folder), **variables},
                start_new_session=True,  # Ctrl-C is for this process, which then ends them in order
            )
        self._processes[name] = process
        INTERRUPTS.release()
        return process

    def _metrics(self) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self._url}/metrics", timeout=STEP_LIMIT_S) as response:
            return bytes(response.read()).decode()


class Steps(Protocol):
    """What is shown, step by step; owns whatever it starts."""

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        """Return what is done: name and action, which returns what there is to show."""

    def last_words(self) -> str:
        """Return what the processes said last, each line marked."""

    def clean_up(self) -> None:
        """End what runs and remove what is there."""


def main(program: list[str]) -> int:
    """Show it; return 0 when all went well, 1 at the first step that did not, 130 when interrupted."""
    INTERRUPTS.hold()
    INTERRUPTS.install()
    for name in [name for name in os.environ if name.startswith(_NOT_OURS)]:
        del os.environ[name]
    return play(Demo(program))


def play(demo: Steps) -> int:
    """Run all steps and clean up; return as `main` does.  Interrupts are held until now."""
    try:
        INTERRUPTS.release()
        return _play(demo)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; everything is ended\n")
        return _INTERRUPTED_STATUS
    finally:
        demo.clean_up()


def _play(demo: Steps) -> int:
    from execserver.client import ExecServerError

    begun = time.monotonic()
    for name, step in demo.steps():
        step_begun = time.monotonic()
        try:
            shown = step()
        except (Failed, OSError, subprocess.SubprocessError, ExecServerError) as error:
            sys.stderr.write(f"FAILED: {name}: {error}{demo.last_words()}\n")
            return 1
        took = (time.monotonic() - step_begun) * 1000
        sys.stdout.write(f"  {name:<42}{took:>6.0f} ms  {shown}".rstrip() + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"OK in {(time.monotonic() - begun) * 1000:.0f} ms; nothing is left running\n")
    return 0


TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.client import ExecServerClient

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
