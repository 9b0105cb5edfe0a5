"""SIGKILL of either end, and of ssh between them, in every verb: an end that is told, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.box.boxes import Person, ssh_host, without_sshd
from tests.box.test_kept import listed
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0
NO_SSHD = without_sshd()


def is_running(marker: str) -> bool:
    """Return whether a process has a text in its command line."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and marker.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                return True
        except OSError:
            pass  # it has ended meanwhile
    return False


def job_of(person: Person) -> dict[str, object]:
    """Return what `ps` says about the command of the name job."""
    return next(each for each in listed(person) if each["name"] == "job")


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_server_that_is_killed_and_started_again_ends_every_verb(person: Person, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    (tmp_path / "slow").mkdir()
    with open(big / "file", "wb") as file:
        file.truncate(4 * 1024**3)
    first = ServerProcess()
    url = first.url
    person.environ["EXECSERVER_BOX"] = url
    done = person.run("run", "-d", "--name", "job", "--", "sleep", "1000")
    assert done.returncode == 0, done.stderr
    verbs = {
        "run": ["run", "-n", "--", "sh", "-c", "echo begun; sleep 1000"],
        "attach": ["attach", "job"],
        "logs": ["logs", "-f", "job"],
        "wait": ["wait", "job"],
        "forward": ["forward", "0:localhost:1"],
        "from": ["cp", "-q", f":{big}/file", str(tmp_path / "slow")],
        "to": ["cp", "-q", "-", f":{tmp_path}/there"],
    }
    started = {name: person.start(*words) for name, words in verbs.items()}
    for name in ("run", "forward"):
        stdout = started[name].stdout
        assert stdout is not None
        assert stdout.readline()
    to = started["to"].stdin
    assert to is not None
    to.write(b"begun")
    to.flush()
    wait_until(lambda: (tmp_path / "there").exists() and list((tmp_path / "slow").iterdir()), WAIT_S)
    with person.at_terminal("shell", url) as screen:
        screen.type(b"echo re'a'dy\r")
        screen.wait_for(b"ready\r\n")
        first.signal(signal.SIGKILL)
        first.wait()
        first.release()
        with ServerProcess(listen=f"ws://127.0.0.1:{port_of(url)}"):
            screen.wait_for(b"unknown session")
            assert screen.ended() == 255
            assert not screen.is_raw()
            for name, process in started.items():
                _, err = process.communicate(timeout=WAIT_S)
                assert process.returncode == 255, (name, err)
                assert b"unknown session" in err or b"is lost" in err, (name, err)
    # What has come stays for --resume, never under the name of the file.
    assert {path.name for path in (tmp_path / "slow").iterdir()} == {".file.execserver-part"}


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_server_that_stays_away_ends_a_run_and_is_told_by_what_waits_longer(person: Person) -> None:
    server = ServerProcess()
    person.environ["EXECSERVER_BOX"] = server.url
    assert person.run("run", "-d", "--name", "job", "--", "sleep", "1000").returncode == 0
    run = person.start("run", "-n", "--", "sh", "-c", "echo begun; sleep 1000")
    waiting = [person.start(*words) for words in (["logs", "-f", "job"], ["wait", "job"], ["attach", "job"])]
    assert run.stdout is not None
    assert run.stdout.readline() == b"begun\n"
    wait_until(lambda: job_of(person)["watchers"] == 3, WAIT_S)
    server.signal(signal.SIGKILL)
    server.wait()
    server.release()
    for process in waiting:
        assert process.stderr is not None
        # `attach` may have said before that somebody else writes.
        assert any(b"is lost; trying to resume" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 130
    _, err = run.communicate(timeout=60)
    assert run.returncode == 255
    assert b"not resumed within 25 s" in err


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_killed_client_leaves_nothing_after_the_time_of_its_session(
    person: Person, server: ServerProcess, tmp_path: Path
) -> None:
    person.environ["EXECSERVER_BOX"] = server.url
    marker = f"1000.{os.getpid()}"
    run = person.start("run", "-n", "--", "sh", "-c", f"echo begun; sleep {marker}")
    assert run.stdout is not None
    assert run.stdout.readline() == b"begun\n"
    copy = person.start("cp", "-q", "-", f":{tmp_path}/there-{marker}")
    wait_until((tmp_path / f"there-{marker}").exists, WAIT_S)
    for process in (run, copy):
        process.kill()
        process.communicate(timeout=WAIT_S)
    assert is_running(f"sleep\0{marker}")  # for 30 s, in which its client could come back
    wait_until(lambda: not is_running(marker), 60)


@pytest.mark.long
@pytest.mark.skipif(bool(NO_SSHD), reason=NO_SSHD or "never")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["client", "ssh"])
def test_over_ssh_nothing_outlives_either_end(victim: str, person: Person, tmp_path: Path) -> None:
    path = ssh_host(tmp_path / "ssh")
    person.environ["PATH"] = f"{path}:{person.environ['PATH']}"
    marker = f"1000.{os.getpid()}{len(victim)}"
    run = person.start("run", "ssh:box", "-n", "--", "sh", "-c", f"echo begun; exec sleep {marker}")
    assert run.stdout is not None
    assert run.stdout.readline() == b"begun\n"
    if victim == "client":
        run.kill()
    else:
        found = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, check=True)
        os.kill(int(found.stdout), signal.SIGKILL)
    _, err = run.communicate(timeout=WAIT_S)
    assert victim == "client" or (run.returncode == 255 and b"Error: ssh:box: " in err), err
    wait_until(lambda: not is_running(marker), WAIT_S)
