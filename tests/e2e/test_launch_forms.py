"""The ways in which templates of sandbox providers start `codex exec-server`: each reaches its relay."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.version import CONTRACT_VERSION
from tests.remote.standin import StandIn, Told
from tests.support.accounts import own_cache
from tests.support.opened import open_program, open_python, open_search_path
from tests.support.programs import write_program, write_script
from tests.support.relay import Relay
from tests.support.roots import open_folder
from tests.support.server_process import OURS, base_environment, interrupts_not_ignored
from tests.support.waiting import wait_until

REMOTE = '--remote "$URL" --environment-id env-1'
DEAD = "http://127.0.0.1:1"
NO_CREDENTIAL = (
    "Error: remote exec-server registration requires ChatGPT authentication or API key authentication"
)
FORMS = {
    "argv": f"exec codex exec-server {REMOTE}",
    "flock": f"exec flock -n lock codex exec-server {REMOTE}",
    "flock with a status": f"exec flock -n -E 75 lock codex exec-server {REMOTE}",
    "full path": f'exec "$PLACE/node_modules/.bin/codex" exec-server {REMOTE}',
    "login shell": f'sh -lc \'cd "$PLACE" && exec "$PLACE/node_modules/.bin/codex" exec-server {REMOTE}\'',
    "tee": f"command -v codex && codex --version && codex exec-server {REMOTE} 2>&1 | tee log",
    "test -x": f'test -x "$PLACE/bin/codex" && exec codex exec-server {REMOTE}',
    "version first": f"codex --version && exec codex exec-server {REMOTE}",
    "no home": f"unset HOME; exec codex exec-server {REMOTE}",
    "a home that is not there": f'HOME="$PLACE/no/such" exec codex exec-server {REMOTE}',
    "stdin closed": f"exec codex exec-server {REMOTE} <&-",
    "stdin null": f"exec codex exec-server {REMOTE} </dev/null",
    "option before the verb": f"exec codex -c model=o3 exec-server {REMOTE}",
    "name": f"exec codex exec-server {REMOTE} --name box",
    "option behind the verb": f"exec codex exec-server -c model=o3 {REMOTE}",
    "strict": f"exec codex --strict-config exec-server {REMOTE}",
    "stdin open": f"exec codex exec-server {REMOTE} --exit-on-stdin-close < <(exec sleep 60)",
    "dead proxies": f"export HTTP_PROXY={DEAD} HTTPS_PROXY={DEAD} ALL_PROXY={DEAD} NO_PROXY=127.0.0.1; "
    f"exec codex exec-server {REMOTE}",
    "our own name": f"exec execserver exec-server {REMOTE}",
}


class Box:
    """A machine of a provider: a folder with `codex` in its PATH, and what was started there."""

    def __init__(self, folder: Path, relay: Relay) -> None:
        self.folder = folder
        self.relay = relay
        self._started: list[subprocess.Popen[bytes]] = []
        for place in (folder / "bin", folder / "node_modules" / ".bin"):
            place.mkdir(parents=True)
            for name in ("codex", "execserver"):
                _put(place / name)
        self.env = {
            **base_environment(),
            **own_cache(),
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "PLACE": str(folder),
            "URL": relay.url,
            "CODEX_API_KEY": "sk-test",
        }

    def start(self, script: str, user: int | None = None) -> subprocess.Popen[bytes]:
        """Start a script of Bash."""
        with interrupts_not_ignored():
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        self._started.append(process)
        return process

    def run(self, script: str, **variables: str) -> tuple[int, str]:
        """Run a script to its end; an empty variable is taken away.  Return status and output."""
        self.env = {name: value for name, value in {**self.env, **variables}.items() if value}
        process = self.start(script)
        wait_until(lambda: process.poll() is not None, 30, pause=gevent.sleep)
        assert process.stdout is not None
        return process.returncode, process.stdout.read().decode()

    def connects(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until an executor is connected to the relay."""
        wait_until(lambda: self.relay.executors or process.poll() is not None, 30, pause=gevent.sleep)
        assert self.relay.executors, process.stdout and process.stdout.read().decode()

    def close(self) -> None:
        """End what was started, group by group."""
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            wait_until(functools.partial(_has_ended, process), 20, pause=gevent.sleep)
            assert process.stdout is not None
            process.stdout.read()  # until everything that has the pipe is gone
            process.stdout.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def _put(path: Path) -> None:
    """Put the program under test at a path: a link to the built file, or what starts the source."""
    if len(OURS.argv) == 1:
        path.symlink_to(OURS.argv[0])
    else:
        write_program(path)


def _put_for_everybody(path: Path) -> None:
    """The same, for a user who may not read the project."""
    if len(OURS.argv) == 1:
        path.symlink_to(open_program(OURS.argv[0]))
    else:
        start = f"import sys; sys.argv[0] = '{path}'; from execserver.dispatch import main; sys.exit(main())"
        write_script(path, f'PYTHONPATH={open_search_path()} exec {open_python()} -c "{start}" "$@"')


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Relay() as relay:
        relay.routing = False
        box = Box(tmp_path, relay)
        yield box
        box.close()


@pytest.mark.parametrize("form", FORMS)
def test_it_connects(box: Box, form: str) -> None:
    box.connects(box.start(FORMS[form]))
    (call,) = box.relay.asked("register")
    assert call.headers["authorization"] == "Bearer sk-test"
    assert call.path == "/cloud/environment/env-1/register"


def test_what_templates_ask_first_is_answered(box: Box) -> None:
    assert box.run("codex --version | awk '{print $2}'") == (0, f"{CONTRACT_VERSION}\n")
    status, shown = box.run("codex exec-server --help")
    assert status == 0
    assert "--environment-id" in shown


def test_a_second_start_under_a_lock_leaves_the_first_alone(box: Box) -> None:
    first = box.start(FORMS["flock with a status"])
    box.connects(first)
    assert box.run(FORMS["flock with a status"])[0] == 75
    assert first.poll() is None


def test_it_ends_when_its_stdin_does(box: Box) -> None:
    fifo = box.folder / "fifo"
    os.mkfifo(fifo)
    process = box.start(f"exec codex exec-server {REMOTE} --exit-on-stdin-close < fifo")
    writer = os.open(fifo, os.O_WRONLY)
    box.connects(process)
    os.write(writer, b"not read by anybody\n")
    os.close(writer)
    wait_until(lambda: process.poll() is not None, 30, pause=gevent.sleep)
    assert process.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as another user")
def test_nobody_without_a_home_connects(box: Box) -> None:
    with open_folder() as folder:
        _put_for_everybody(folder / "codex")
        box.env["PATH"] = f"{folder}:/usr/bin:/bin"
        box.connects(box.start(f"cd /; HOME=/nonexistent exec codex exec-server {REMOTE}", user=65534))


def test_a_bearer_from_stdin_signs_the_registration(box: Box) -> None:
    del box.env["CODEX_API_KEY"]
    box.connects(box.start(f"printf 'tok-1\\n' | codex exec-server {REMOTE} --registration-bearer-stdin"))
    (call,) = box.relay.asked("register")
    assert call.headers["authorization"] == "Bearer tok-1"


def test_a_credential_from_stdin_is_replaced_without_a_restart(box: Box) -> None:
    frame = '{"version":1,"environment_id":"env-1","token":"%s","expires_at":99999999999}\n'
    fifo = box.folder / "fifo"
    os.mkfifo(fifo)
    process = box.start(f"exec codex exec-server {REMOTE} --executor-credential-stdin < fifo")
    with fifo.open("wb", buffering=0) as writer:
        writer.write(frame.encode() % b"t1")
        box.connects(process)
        writer.write(frame.encode() % b"t2")
        box.relay.upgrade_status = 410  # the address is no longer valid
        box.relay.executor.drop()
        wait_until(lambda: len(box.relay.asked("register")) > 1, 30, pause=gevent.sleep)
    wait_until(lambda: process.poll() is not None, 30, pause=gevent.sleep)
    sent = [call.headers["authorization"] for call in box.relay.asked("register")]
    assert (process.returncode, sent[0], sent[1]) == (0, "Bearer t1", "Bearer t2")


def test_a_wrong_credential_on_stdin_ends_it_with_the_recorded_text(box: Box) -> None:
    status, shown = box.run(f"echo junk | codex exec-server {REMOTE} --executor-credential-stdin")
    assert (status, "Error: invalid exec-server executor credential frame\n" in shown) == (1, True)


def test_an_access_token_in_place_of_the_key_connects(box: Box) -> None:
    owner = {"chatgpt_account_id": "acct-9"}
    with StandIn(lambda asked: Told(200, owner)) as accounts:
        box.env["CODEX_AUTHAPI_BASE_URL"] = accounts.url
        box.env["CODEX_ACCESS_TOKEN"] = "at-token"
        del box.env["CODEX_API_KEY"]
        box.connects(box.start(FORMS["argv"]))
    (call,) = box.relay.asked("register")
    assert (call.headers["authorization"], call.headers["chatgpt-account-id"]) == (
        "Bearer at-token",
        "acct-9",
    )


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"CODEX_API_KEY": ""}, NO_CREDENTIAL),
        ({"CODEX_API_KEY": "", "OPENAI_API_KEY": "k"}, NO_CREDENTIAL),
        ({"CODEX_HOME": "/no/such"}, 'CODEX_HOME points to "/no/such", but that path does not exist'),
    ],
)
def test_without_a_credential_it_is_refused(box: Box, variables: dict[str, str], text: str) -> None:
    status, shown = box.run(f"codex exec-server {REMOTE}", **variables)
    assert status == 1
    assert text in shown
    assert box.relay.calls == []
