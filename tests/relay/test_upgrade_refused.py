"""An upgrade of a relay that does not come about: it goes on, and says why; nothing planted ever runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from execserver.handover.records import STATE_VERSION
from execserver.runtime_paths import STATE_VARIABLE, UPGRADE_SOCKET
from execserver.wire.relay_frames import Data, Handshake, RelayFrame
from tests.support import upgrades
from tests.support.relay_process import Peer, RelayProcess
from tests.support.relay_process import program as ours
from tests.support.server_process import base_environment
from tests.support.upgrades import (
    OTHER_UID,
    RELAY_AGREEMENT,
    need_root,
    no_new_privileges,
    planted_program,
    program_that_cannot_run,
    refused,
    silent_program,
    upgraded,
)
from tests.support.waiting import wait_until

program = partial(upgrades.program, agreement=RELAY_AGREEMENT)


@pytest.fixture(scope="module")
def running() -> Iterator[RelayProcess]:
    """One relay for all: none of them changes it."""
    with RelayProcess("--upgrade-on-hup") as relay:
        yield relay


@pytest.fixture
def relay(running: RelayProcess) -> Iterator[RelayProcess]:
    """The relay with a stream, which goes on whatever a test does."""
    token = token_of(running)
    with running.executor(token) as executor, running.harness(token) as harness:
        harness.send("s", Handshake(b"hello"))
        executor.receive()
        yield running
        pass_on(executor, harness)
    assert "upgraded from" not in running.errors()


def token_of(relay: RelayProcess) -> str:
    """Make a token without SIGHUP, which would ask for an upgrade; the relay finds it in its own time."""
    from execserver.relay import tokens

    _, text = tokens.create(str(relay.token_file), "box-1", "both")
    wait_until(lambda: relay.call("x", "validate", {}, text)[0] != 401)
    return text


def pass_on(executor: Peer, harness: Peer) -> None:
    executor.send("s", Data(0, b"still here"))
    assert harness.receive() == RelayFrame("s", Data(0, b"still here"))
    harness.send("s", Data(0, b"here, too"))
    assert executor.receive() == RelayFrame("s", Data(0, b"here, too"))


def test_a_program_that_says_nothing_or_something_else(relay: RelayProcess, tmp_path: Path) -> None:
    file = program(tmp_path / "new", "echo unknown option >&2", agrees=False)
    assert f"{file} cannot take over: unknown option" in refused(relay, str(file))
    assert f"not upgraded to {file}, as pid " in relay.errors()
    assert "cannot take over: it said nothing" in refused(relay, str(silent_program(tmp_path / "silent")))


def test_a_program_that_reads_another_version_of_the_state(relay: RelayProcess, tmp_path: Path) -> None:
    for agreement in (f"execserver resumes {STATE_VERSION}", "execserver resumes 1002"):
        file = upgrades.program(tmp_path / "new", agreement=agreement)
        assert f"{file} cannot take over: {agreement}" in refused(relay, str(file))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["1", "relay"], "this program reads version 1001 of a relay's state, not 1"),
        (["1001"], f"this program reads version {STATE_VERSION} of a server's state, not 1001"),
        (["1001", "relay", "--stat", "x"], "unexpected argument '--stat' found"),
        (["1001", "relay", "token", "list"], "these are no arguments of a relay"),
        (["1001", "relay", "--token-file", "/nowhere/tokens"], "/nowhere/tokens: No such file or directory"),
        (
            ["1001", "relay", "--engine", "redis://127.0.0.1:1"],
            "a relay with --engine is ended and started anew instead: streams go on at other nodes",
        ),
    ],
)
def test_what_our_own_program_says_if_it_cannot_take_over(words: list[str], why: str) -> None:
    done = subprocess.run(
        [*ours(), "--execserver-can-resume", *words],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=base_environment(),
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert why in done.stderr


def test_a_file_that_others_can_write_or_that_is_none(relay: RelayProcess, tmp_path: Path) -> None:
    file = program(tmp_path / "new", f"touch {tmp_path}/ran")
    file.chmod(0o775)
    assert f"{file} can be written by others (mode 0775)" in refused(relay, str(file))
    file.chmod(0o644)
    assert f"{file} is not executable" in refused(relay, str(file))
    assert f"{tmp_path} is no file" in refused(relay, str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_file_of_another_user(relay: RelayProcess, tmp_path: Path) -> None:
    need_root()
    file = program(tmp_path / "new", f"touch {tmp_path}/ran")
    os.chown(file, OTHER_UID, OTHER_UID)
    assert f"{file} belongs to another user" in refused(relay, str(file))
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_written_to_or_replaced_while_it_is_looked_at(
    relay: RelayProcess, tmp_path: Path
) -> None:
    file = tmp_path / "new"
    program(file, f"echo '#' >> {file}")
    assert f"{file} was changed while it was looked at" in refused(relay, str(file))
    planted = planted_program(tmp_path / "planted", agreement=RELAY_AGREEMENT)
    program(file, f"mv {planted} {file}")
    assert f"{file} was changed while it was looked at" in refused(relay, str(file))
    assert not (tmp_path / "ran").exists()


def test_an_exec_that_fails_after_all(relay: RelayProcess, tmp_path: Path) -> None:
    """The interpreter is gone by then; the relay has packed everything, and goes on."""
    file = program_that_cannot_run(tmp_path, RELAY_AGREEMENT)
    with socket.create_connection(("127.0.0.1", relay.port), 20) as waiting:
        assert f"{file} cannot be executed: No such file or directory" in refused(relay, str(file))
        waiting.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_name_that_leads_elsewhere_meanwhile(tmp_path: Path) -> None:
    """What was looked at is what runs."""
    planted = planted_program(tmp_path / "planted", agreement=RELAY_AGREEMENT)
    link = tmp_path / "link"
    link.symlink_to(program(tmp_path / "new", f"ln -sfn {planted} {link}"))
    with RelayProcess() as relay:
        token = relay.token()
        with relay.executor(token) as executor, relay.harness(token) as harness:
            harness.send("s", Handshake(b"hello"))
            executor.receive()
            upgraded(relay, str(link))
            assert link.readlink() == planted
            assert not (tmp_path / "ran").exists()
            pass_on(executor, harness)


def test_nobody_asks_from_a_sandbox(relay: RelayProcess, tmp_path: Path) -> None:
    file = program(tmp_path / "new", f"touch {tmp_path}/ran")
    said = refused(relay, str(file), before=no_new_privileges)
    assert "it is asked from inside a sandbox: a process there may not upgrade the relay" in said
    assert not (tmp_path / "ran").exists()


def test_another_user_can_neither_ask_nor_send_the_signal(relay: RelayProcess) -> None:
    need_root()
    code = (
        "import os, signal, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"s.connect({UPGRADE_SOCKET % relay.pid!r}); s.send(b'{{}}'); print(s.recv(4096).decode())\n"
        f"try: os.kill({relay.pid}, signal.SIGHUP)\n"
        "except PermissionError: print('no right')\n"
    )
    said = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
    )
    assert said.stdout == ('{"refused":"only the user of the relay, and root, may upgrade it"}\nno right\n')


def has_upgraded(relay: RelayProcess, times: int) -> bool:
    return relay.errors().count("upgraded from") == times


def test_sighup_upgrades_only_with_the_option() -> None:
    with RelayProcess("--upgrade-on-hup") as relay:
        token = token_of(relay)
        with relay.executor(token) as executor, relay.harness(token) as harness:
            harness.send("s", Handshake(b"hello"))
            executor.receive()
            for number in (1, 2):
                relay.process.send_signal(signal.SIGHUP)
                wait_until(partial(has_upgraded, relay, number), 30)
            pass_on(executor, harness)
        assert "reloaded" not in relay.errors()
    with RelayProcess() as relay:
        relay.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in relay.errors())
        assert "upgrading to" not in relay.errors()


def test_a_relay_that_is_being_ended_is_not_upgraded(tmp_path: Path) -> None:
    with RelayProcess(limits={"drain_s": 60.0}) as relay:
        file = program(tmp_path / "new", f"kill -TERM {relay.pid}")
        with relay.executor(relay.token()):
            assert "the relay is being ended" in refused(relay, str(file))
            wait_until(lambda: relay.request("GET", "/readyz")[0] == 503)


def test_a_state_that_is_none_is_told() -> None:
    done = subprocess.run(
        [*ours(), "relay", "--token-file", "/dev/null"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=base_environment() | {STATE_VARIABLE: "0"},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error: this relay cannot go on: the descriptor is no memory file" in done.stderr
