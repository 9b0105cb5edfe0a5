"""The wrapper as a process, against an end that is played by hand (shell tool contract)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.helpers.wrapper_process import NO_ANSWER, answered, command, compiled, finish
from tests.support.wrapper_peer import LIMIT_S, SOCKET_VARIABLE, WrapperPeer, frame

__all__ = ["command", "compiled"]
pytestmark = pytest.mark.timeout(900 if LONG else 180)  # the first of them compiles a program


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_it_asks_with_what_the_program_would_get(command: list[str], kind: int, tmp_path: Path) -> None:
    with WrapperPeer(kind) as peer:
        env = {b"BASH_EXEC_WRAPPER": b"/w", b"EXEC_WRAPPER": b"/w", b"K": "é\n\U0001f600".encode()}
        process = peer.start(command, "./prog", "-x", "--help", "", env=env, cwd=tmp_path)
        session = peer.accept()
        assert session.request == {
            "file": "./prog",
            "argv": ["-x", "--help", ""],
            "workdir": os.path.realpath(tmp_path),
            "env": {"PATH": "/usr/bin:/bin", "K": "é\n\U0001f600"},
        }
        assert session.descriptors == []
        session.close()
        assert finish(process)[0] == 1


def test_bytes_that_are_no_text_arrive_as_they_are(command: list[str]) -> None:
    with WrapperPeer() as peer:
        process = peer.start(command, b"/\xff", b"a\xfe", env={b"K\xfd": b"\xfc"})
        session = peer.accept()
        request = session.request
        assert (os.fsencode(request["file"]), os.fsencode(request["argv"][0])) == (b"/\xff", b"a\xfe")
        assert os.fsencode(request["env"][os.fsdecode(b"K\xfd")]) == b"\xfc"
        session.close()
        assert finish(process)[0] == 1


def test_run_becomes_the_program_with_everything_as_it_was(command: list[str]) -> None:
    script = 'echo "$0 $1 ${BASH_EXEC_WRAPPER} ${CODEX_ESCALATE_SOCKET:+set} $K"; exit 7'
    env = {b"BASH_EXEC_WRAPPER": b"/w", b"K": b"\xff"}
    done = answered(command, {"action": "Run"}, "/bin/sh", "name", "-c", script, "-zero", "\udcff", env=env)
    assert done == (7, b"-zero \xff /w set \xff\n", "")


def test_run_leaves_signals_as_they_were(command: list[str]) -> None:
    done = answered(
        command, {"action": "Run"}, "/bin/sh", "sh", "-c", "grep SigIgn /proc/$$/status; kill -PIPE $$"
    )
    assert (done[0], done[2]) == (-signal.SIGPIPE, "")
    assert int(done[1].split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


def test_run_passes_an_empty_name_on(command: list[str]) -> None:
    assert answered(command, {"action": "Run"}, "/bin/sh", "", "-c", 'echo "<$0>"') == (0, b"<>\n", "")


@pytest.mark.parametrize(
    ("file", "mode", "reason"),
    [
        ("missing", 0, "No such file or directory (os error 2)"),
        ("junk", 0o755, "Exec format error (os error 8)"),
        ("junk", 0o644, "Permission denied (os error 13)"),
    ],
)
def test_a_program_that_cannot_be_run_is_a_failure(
    command: list[str], file: str, mode: int, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "junk").chmod(mode or 0o644)
    assert answered(command, {"action": "Run"}, str(tmp_path / file), "x") == (1, b"", f"Error: {reason}\n")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"action": {"Deny": {"reason": "it is late"}}}, "Execution denied: it is late\n"),
        ({"action": {"Deny": {"reason": None}}}, "Execution denied\n"),
        ({"action": {"Deny": {}}}, "Execution denied\n"),
        (b"", f"{NO_ANSWER}socket closed while receiving frame header\n"),
        (b"\x05\0", f"{NO_ANSWER}socket closed while receiving frame header\n"),
        (b"\x05\0\0\0ab", f"{NO_ANSWER}socket closed while receiving frame payload\n"),
        ({}, f"{NO_ANSWER}missing field `action`\n"),
        ([], f"{NO_ANSWER}invalid type: not an object\n"),
        ({"action": "Deny"}, f"{NO_ANSWER}invalid type for the field `action`\n"),
        (
            {"action": "Bogus"},
            f"{NO_ANSWER}unknown variant `Bogus`, expected one of `Run`, `Escalate`, `Deny`\n",
        ),
        (b"\xff\xff\xff\xff", f"{NO_ANSWER}frame of 4294967295 bytes is above the limit of 8388608\n"),
    ],
)
def test_what_is_not_allowed_does_not_run(command: list[str], answer: object, text: str) -> None:
    assert answered(command, answer, "/bin/echo", "echo", "ran") == (1, b"", text)


@pytest.mark.parametrize(("code", "status"), [(0, 0), (9, 9), (143, 143), (300, 44), (-1, 255)])
def test_an_escalated_program_runs_with_the_wrappers_descriptors(
    command: list[str], code: int, status: int
) -> None:
    reader, writer = os.pipe()
    with WrapperPeer() as peer:
        process = peer.start(command, "/bin/x", "x", pass_fds=(writer,))
        os.close(writer)
        session = peer.accept()
        session.send({"action": "Escalate"})
        text, descriptors = session.receive_text()
        numbers = [0, 1, 2, writer]
        assert text == f'{{"fds":{numbers}}}'.replace(" ", "").encode()
        for number, descriptor in zip(numbers, descriptors, strict=True):
            if number:
                os.write(descriptor, b"%d" % number)
            os.close(descriptor)
        # The other ends are at their end although the wrapper still waits.
        assert process.stdout is not None
        assert process.stdout.read() == b"1"
        assert os.read(reader, 10) == b"%d" % writer
        assert os.read(reader, 10) == b""
        os.close(reader)
        session.send({"exit_code": code})
        session.close()
        assert finish(process) == (status, b"", "2")


def test_only_open_descriptors_are_given_and_no_more_than_a_message_takes(command: list[str]) -> None:
    reader, writer = os.pipe()
    copies = [os.dup(writer) for _ in range(20)]
    with WrapperPeer() as peer:
        command = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
        process = peer.start(command, "/bin/x", "x", pass_fds=copies)
        session = peer.accept()
        session.send({"action": "Escalate"})
        text, descriptors = session.receive_text()
        assert text.startswith(b'{"fds":[1,2,')
        assert len(descriptors) == 16
        for descriptor in (reader, writer, *copies, *descriptors):
            os.close(descriptor)
        session.send({"exit_code": 0})
        session.close()
        assert finish(process)[0] == 0


def test_without_a_result_it_fails_and_says_so(command: list[str]) -> None:
    with WrapperPeer() as peer:
        process = peer.start(command, "/bin/x", "x")
        session = peer.accept()
        session.send({"action": "Escalate"})
        for descriptor in session.receive_text()[1]:
            os.close(descriptor)
        session.close()
        status, _, errors = finish(process)
    assert status == 1
    assert errors.startswith("Error: failed to receive the result of the escalated command\n")


def test_a_large_environment_is_asked_in_pieces(command: list[str]) -> None:
    env = {b"K%d" % number: b"v" * 100_000 for number in range(5)}
    with WrapperPeer() as peer:
        process = peer.start(command, "/bin/sh", "sh", "-c", "echo ${#K4}", env=env)
        session = peer.accept()
        assert len(session.request["env"]) == 6
        session.send({"action": "Run"})
        session.close()
        assert finish(process) == (0, b"100000\n", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "environment variable not found"),
        ("", "cannot parse integer from empty string"),
        ("abc", "invalid digit found in string"),
        (" 5", "invalid digit found in string"),
        ("1.0", "invalid digit found in string"),
        ("99999999999", "number too large to fit in target type"),
        ("-4", f"{SOCKET_VARIABLE} is not a valid file descriptor: -4"),
        ("777", "Bad file descriptor (os error 9)"),
        ("+777", "Bad file descriptor (os error 9)"),
    ],
)
def test_a_socket_that_is_none_is_told(command: list[str], value: str | None, text: str) -> None:
    env = {} if value is None else {SOCKET_VARIABLE: value}
    done = subprocess.run(
        [*command, "/bin/echo", "echo"], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {text}\n")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (socket.SOCK_SEQPACKET, "Broken pipe (os error 32)"),
        (socket.SOCK_DGRAM, "Connection refused (os error 111)"),
    ],
)
def test_an_end_that_is_gone_is_told(command: list[str], kind: int, reason: str) -> None:
    with WrapperPeer(kind) as peer:
        peer.ours.close()
        done = finish(peer.start(command, "/bin/echo", "echo"))
    assert done == (1, b"", f"Error: failed to send handshake datagram\n\nCaused by:\n    {reason}\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "error: the following required arguments were not provided:\n  <FILE>\n"),
        (["--"], "error: the following required arguments were not provided:\n  <FILE>\n"),
        (["--version"], "error: unexpected argument '--version' found\n"),
        (["-e", "x"], "error: unexpected argument '-e' found\n"),
    ],
)
def test_wrong_usage_is_told(command: list[str], arguments: list[str], text: str) -> None:
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(text)
    assert done.stderr.endswith(
        "\nUsage: codex-execve-wrapper <FILE> [ARGV]...\n\nFor more information, try '--help'.\n"
    )


def test_two_dashes_end_the_options(command: list[str]) -> None:
    with WrapperPeer() as peer:
        process = peer.start(command, "--", "-file", "--", "x")
        session = peer.accept()
        assert (session.request["file"], session.request["argv"]) == ("-file", ["--", "x"])
        session.close()
        assert finish(process)[0] == 1


def test_help_is_for_those_who_ask(command: list[str]) -> None:
    done = subprocess.run([*command, "-h"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: codex-execve-wrapper <FILE> [ARGV]...\n")


def test_a_full_queue_is_waited_for(command: list[str]) -> None:
    """The socket may be non-blocking for all who share it, and others may have filled it."""
    with WrapperPeer() as peer:
        peer.theirs.setblocking(False)
        waiting = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting += peer.theirs.send(b"x")
        process = peer.start(command, "/bin/echo", "echo", "ran")
        for _ in range(waiting):
            assert peer.ours.recv(1) == b"x"
        session = peer.accept()
        session.send({"action": "Run"})
        session.close()
        assert finish(process) == (0, b"ran\n", "")


def test_a_reason_is_told_whatever_is_in_it(command: list[str]) -> None:
    reason = rb'"\u00e9\"\\\/\n\ud83d\ude00\udcff"'
    text = b' { "x" : [1, {"y": null}, true], "action" : {"Deny" : {"reason" : %b}}} ' % reason
    with WrapperPeer() as peer:
        process = peer.start(command, "/bin/echo", "echo", "ran")
        session = peer.accept()
        session.stream.sendall(frame(text))
        session.close()
        out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (1, b"")
    assert errors == 'Execution denied: é"\\/\n\U0001f600'.encode() + b"\xff\n"


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{",
            b'{"',
            b'{"action"',
            b'{"action":',
            b'{"action":"',
            b'{"action":"Run"',
            b'{"action":"Run",}',
        ),
        *(
            b'{"action":"Run"}x',
            b'{"action":"\\u12"}',
            b'{"action":"\\ud800"}',
            b'{"action":"\\',
            b"[" * 5000,
        ),
        *(
            b'{"a":' * 5000,
            b'{"action":"a\0b"}',
            b'{"action":"a\nb"}',
            b'{"a":}',
            b'{"a":1e',
            b"\xff",
            b"null",
        ),
        *(
            b'{"action":{"Deny":{"reason":"',
            b'{"action":{"Deny":5}}',
            b'{"action":{}}',
            b'{"action":[]}',
            b"{}}",
        ),
    ],
)
def test_answers_that_are_none_run_nothing(command: list[str], text: bytes) -> None:
    status, out, errors = answered(command, frame(text), "/bin/echo", "echo", "ran")
    assert (status, out) == (1, b"")
    assert errors.startswith(NO_ANSWER)
    assert "Sanitizer" not in errors
