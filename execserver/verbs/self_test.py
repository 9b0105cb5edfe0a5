"""`execserver self-test`: does this program work on this machine?

Starts itself as users do, on a free port of loopback, and uses that server over the WebSocket: a command with
pipes, a command in a terminal, file calls.  The commands are this program, too, so nothing else needs to be
installed.  Prints a line with its time for each step and OK, or the exact failure and what to do about it.
Where sandboxed requests would be refused, it says so beside the OK: all else works.  Leaves nothing behind,
even if interrupted.
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

from execserver.leaving import until_left
from execserver.verbs.program import start_command
from execserver.verbs.usage import verb
from execserver.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.client import ExecServerClient

VERB = "self-test"
START_LIMIT_S = 30.0  # the first start on a machine unpacks the program
STEP_LIMIT_S = 15.0

_SHOWN_ERRORS = 2000  # bytes from the end of the server's stderr
_INTERRUPTED_STATUS = 130
_USUAL_POLICY = "workspace-write"
_REQUEST = b'{"operation":"fs/canonicalize","params":{"path":"file:///./"}}'
_REPLY = b'{"status":"ok","payload":{"operation":"fs/canonicalize","response":{"path":"file:///"}}}\n'
_CONTENT = b"execserver self-test\n" * 5000


class Failed(Exception):
    """A step failed; the text gives the actual result.  `cure` takes the place of the step's own remedy."""

    def __init__(self, text: str, cure: str = "") -> None:
        super().__init__(text)
        self.cure = cure


def main() -> int:
    """Run all steps; return 0 if all succeed, 1 at the first failure, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    verb(VERB).parse(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    test = SelfTest(start_command())
    try:
        return _run(test)
    except KeyboardInterrupt:
        return _INTERRUPTED_STATUS
    finally:
        test.clean_up()


def _run(test: SelfTest) -> int:
    from execserver.client import ExecServerError  # late: it imports gevent and msgspec

    _say(f"execserver {__version__}, started as {' '.join(test.command)}")
    begun = time.monotonic()
    for name, step, cure in test.steps():
        step_begun = time.monotonic()
        try:
            step()
        except (Failed, OSError, ExecServerError) as error:
            cure = getattr(error, "cure", "") or cure
            _say(f"FAILED: {name}: {error}{test.last_words()}\n  What to do: {cure}")
            return 1
        _say(f"  {name:<32}{_ms_since(step_begun):>7.0f} ms")
    _say(f"OK in {_ms_since(begun):.0f} ms{test.restriction}")
    return 0


class SelfTest:
    """One run: owns the server it starts, the client and a directory, until `clean_up`."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._server: subprocess.Popen[bytes] | None = None
        # The server's stderr: unlike a pipe it is never full.
        self._errors = os.memfd_create("execserver-self-test")
        self._url = ""
        self._client: ExecServerClient | None = None
        self._folder = ""
        self.restriction = ""  # what is to be said beside the OK

    def steps(self) -> list[tuple[str, Callable[[], None], str]]:
        """Return name, action and remedy of every step."""
        return [
            ("start the server", self.start, "start it by hand with --log-level debug and read what it says"),
            (
                "connect to it",
                self.connect,
                "let programs of this machine reach each other on 127.0.0.1 (is the interface `lo` up?)",
            ),
            (
                "run a command with pipes",
                self.run_with_pipes,
                "let this user start programs: look at `ulimit -u`, and at filters of system calls",
            ),
            (
                "run a command in a terminal",
                self.run_in_terminal,
                "make terminals available: mount -t devpts devpts /dev/pts",
            ),
            (
                "write, read and remove files",
                self.use_files,
                "set TMPDIR to a folder this user may write to, on a disk with some room",
            ),
            ("look for a sandbox", self.look_for_sandbox, "run `execserver doctor`"),
            ("stop the server", self.stop, "please report this with the output of this command"),
        ]

    def start(self) -> None:
        """Start the server and read its URL."""
        if not os.path.exists(os.devnull):
            raise Failed(
                f"there is no {os.devnull}", "mount a /dev that has at least null, zero, random and tty"
            )
        self._server = subprocess.Popen(
            [*self.command, "--listen", "ws://127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        line = self._read_line(self._server, time.monotonic() + START_LIMIT_S)
        if not line.startswith("ws://127.0.0.1:"):
            raise Failed(f"it printed {line!r} instead of its URL")
        self._url = line

    @staticmethod
    def _read_line(server: subprocess.Popen[bytes], deadline: float) -> str:
        assert server.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([server.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Failed(f"it printed no URL within {START_LIMIT_S:g} s")
            byte = server.stdout.read(1)
            if not byte:
                raise Failed(f"it ended with status {server.wait(STEP_LIMIT_S)} and printed no URL")
            line += byte
        return line.decode("utf-8", "replace").rstrip("\n")

    def connect(self) -> None:
        """Open a session."""
        from execserver.client import ExecServerClient, ExecServerClientConnectOptions

        options = ExecServerClientConnectOptions(
            client_name="execserver-self-test",
            connect_timeout=STEP_LIMIT_S,
            initialize_timeout=STEP_LIMIT_S,
            request_timeout=STEP_LIMIT_S,
        )
        self._client = ExecServerClient.connect(self._url, options)

    def run_with_pipes(self) -> None:
        """Run the file helper: it reads a request on stdin and answers on stdout."""
        process = self._connected().start([*self.command, "codex-fs"], pipe_stdin=True)
        done = process.communicate(_REQUEST, STEP_LIMIT_S)
        if (done.exit_code, done.stdout) != (0, _REPLY):
            raise Failed(f"exit code {done.exit_code}, stdout {done.stdout!r}, stderr {done.stderr!r}")

    def run_in_terminal(self) -> None:
        """Run `--version`; the terminal puts a carriage return before the line end."""
        done = self._connected().start([*self.command, "--version"], tty=True).communicate(None, STEP_LIMIT_S)
        if (done.exit_code, done.stdout) != (0, f"execserver {__version__}\r\n".encode()):
            raise Failed(f"exit code {done.exit_code}, output {done.stdout!r}")

    def use_files(self) -> None:
        """Write a file, read it back, list its directory, remove it."""
        self._folder = os.path.realpath(tempfile.mkdtemp(prefix="execserver-self-test-"))
        client, file = self._connected(), f"{self._folder}/sub/file"
        client.create_directory(f"{self._folder}/sub")
        client.write_file(file, _CONTENT)
        if client.read_file(file) != _CONTENT:
            raise Failed(f"{file} does not hold what was written into it")
        names = [entry.file_name for entry in client.read_directory(f"{self._folder}/sub")]
        if names != ["file"]:
            raise Failed(f"{self._folder}/sub holds {names}")
        client.remove(self._folder)
        if os.path.lexists(self._folder):
            raise Failed(f"{self._folder} is still there")

    def look_for_sandbox(self) -> None:
        """Ask whether commands can be kept from files here.  Where they cannot, all others still work."""
        for policy in self._connected().environment_sandbox().policies:
            if policy.name == _USUAL_POLICY and policy.back_end is None:
                self.restriction = (
                    f", but sandboxed requests are refused here: {policy.blocker}\n"
                    f"  What to do: {policy.cure}, or see `execserver doctor`"
                )

    def stop(self) -> None:
        """End the session and the server."""
        self._connected().close()
        assert self._server is not None
        self._server.terminate()
        try:
            status = self._server.wait(STEP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {STEP_LIMIT_S:g} s") from None
        if status:
            raise Failed(f"it ended with status {status}")

    def last_words(self) -> str:
        """Return the end of the server's stderr, on lines of its own; empty if there is nothing."""
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _SHOWN_ERRORS, max(0, size - _SHOWN_ERRORS))
        lines = text.decode("utf-8", "replace").splitlines()
        return "".join(f"\n  | {line}" for line in lines)

    def clean_up(self) -> None:
        """End the server and remove the directory, if they are still there."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            if self._server.stdout is not None:
                self._server.stdout.close()
        os.close(self._errors)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connected(self) -> ExecServerClient:
        assert self._client is not None
        return self._client


def _ms_since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
