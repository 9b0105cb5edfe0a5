"""The whole client against a real server."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import gevent
import pytest

import execserver.client
from execserver.client import (
    Closed,
    ExecServerClient,
    Exited,
    InternalError,
    InvalidRequestError,
    InvalidUrl,
    MethodNotFoundError,
    NotFoundError,
    Output,
    OutputGap,
    RequestFailed,
    StdinUnavailable,
    UnsupportedByServer,
)
from execserver.protocol.files import FsWalkOptions
from execserver.protocol.resource_limits import EndCause, ProcessEnd, ResourceLimits
from tests.support.server_process import Flavour, ServerProcess, base_environment

MIB = 1024 * 1024


def collected(process: execserver.client.RemoteProcess, stream: str = "stdout") -> bytes:
    return b"".join(event.data for event in process if isinstance(event, Output) and event.stream == stream)


class TestProcesses:
    def test_output_exit_and_end_come_in_order(self, remote: ExecServerClient) -> None:
        process = remote.start(["sh", "-c", "echo out; echo err >&2; exit 3"], cwd="/tmp")
        events = list(process)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1], Closed)
        assert sum(isinstance(event, Exited) for event in events) == 1
        outputs = {event.stream: event.data for event in events if isinstance(event, Output)}
        assert outputs == {"stdout": b"out\n", "stderr": b"err\n"}
        assert process.wait() == 3
        assert not process.sandbox_denied()

    def test_limits_are_asked_for_and_the_end_says_why(self, remote: ExecServerClient) -> None:
        limits = ResourceLimits(wall_ms=200)
        if not remote.extensions.process_limits:
            with pytest.raises(UnsupportedByServer, match="this server holds no process to limits"):
                remote.start(["true"], limits=limits)
            return
        process = remote.start(["sleep", "60"], limits=limits)
        assert process.wait(timeout=20) == 137
        exited = process.exited
        assert exited is not None
        assert exited.ended == ProcessEnd(
            cause=EndCause.DEADLINE,
            limit="wallMs",
            scope="process",
            value=200,
            signal=9,
            text="ended because its time of 200 ms was over",
        )
        assert exited.usage is not None
        (entry,) = remote.process_list()
        assert (entry.ended, entry.usage) == (exited.ended, exited.usage)

    def test_communicate_collects_both_streams(self, remote: ExecServerClient) -> None:
        done = remote.start(["sh", "-c", "echo out; echo err >&2; exit 4"]).communicate(timeout=20)
        assert (done.exit_code, done.stdout, done.stderr) == (4, b"out\n", b"err\n")

    def test_cwd_env_and_arg0_are_the_callers(self, remote: ExecServerClient, tmp_path: Path) -> None:
        place = tmp_path / "a b%20ü"
        place.mkdir()
        process = remote.start(
            ["/bin/sh", "-c", 'echo "$0|$PWD|$X|$HOME"'], cwd=place, env={"X": "ä"}, arg0="other"
        )
        assert collected(process).decode() == f"other|{place}|ä|\n"

    def test_the_servers_environment_is_inherited_without_env(self, remote: ExecServerClient) -> None:
        assert collected(remote.start(["sh", "-c", 'test -n "$PATH" && echo yes'])) == b"yes\n"

    def test_input_reaches_the_process(self, remote: ExecServerClient) -> None:
        process = remote.start(["head", "-c", "300000"], pipe_stdin=True)
        writer = gevent.spawn(process.write, bytes(range(256)) * 1200)
        assert collected(process) == (bytes(range(256)) * 1200)[:300_000]
        writer.get(timeout=20)

    def test_a_process_without_input_takes_none(self, remote: ExecServerClient) -> None:
        process = remote.start(["cat"])
        with pytest.raises(StdinUnavailable, match="stdinClosed"):
            process.write(b"x")
        assert process.wait(20) == 0

    def test_a_terminal_echoes_and_has_one_stream(self, remote: ExecServerClient) -> None:
        process = remote.start(["cat"], tty=True)
        process.write(b"hi\n\x04")
        assert collected(process, "pty").replace(b"^D\x08\x08", b"") == b"hi\r\nhi\r\n"
        assert process.wait() == 0

    def test_interrupt_and_terminate_end_a_process(self, remote: ExecServerClient) -> None:
        process = remote.start(["sleep", "1000"])
        process.signal("interrupt")
        assert process.wait(20) == 130
        process = remote.start(["sleep", "1000"])
        assert process.terminate()
        assert process.wait(20) in (-1, 137)
        assert not process.terminate()

    def test_a_program_that_is_not_there_is_an_error(self, remote: ExecServerClient) -> None:
        with pytest.raises(InternalError, match="No such file or directory"):
            remote.start(["/no/such/program"])
        remote.start(["true"], process_id="taken").wait(20)
        with pytest.raises(InvalidRequestError, match="process taken already exists"):
            remote.start(["true"], process_id="taken")

    def test_much_output_arrives_whole(self, remote: ExecServerClient) -> None:
        script = "import sys\nfor n in range(200): sys.stdout.buffer.write(bytes([n]) * 100000)"
        process = remote.start([sys.executable, "-S", "-c", script])
        digest, size = hashlib.sha256(), 0
        for event in process:
            if isinstance(event, Output):
                digest.update(event.data)
                size += len(event.data)
        assert size == 20_000_000
        assert digest.digest() == hashlib.sha256(b"".join(bytes([n]) * 100_000 for n in range(200))).digest()

    def test_a_slow_reader_holds_the_process_back_and_loses_nothing(self, server: ServerProcess) -> None:
        options = execserver.client.ExecServerClientConnectOptions(max_unread_bytes=MIB)
        with ExecServerClient.connect(server.url, options) as client:
            process = client.start(["head", "-c", str(30 * MIB), "/dev/zero"])
            gevent.sleep(0.3)
            assert process.last_seq * 1024 < 30 * MIB
            assert process.exit_code is None
            assert len(collected(process)) == 30 * MIB

    def test_an_endless_producer_nobody_reads_does_not_block_calls(self, server: ServerProcess) -> None:
        options = execserver.client.ExecServerClientConnectOptions(
            max_unread_bytes=MIB, max_unread_bytes_while_waiting=4 * MIB
        )
        with ExecServerClient.connect(server.url, options) as client:
            process = client.start(["cat", "/dev/zero"])
            gevent.sleep(0.2)
            assert client.start(["echo", "still here"]).communicate(timeout=20).stdout == b"still here\n"
            assert process.terminate()
            process.wait(20)
            seen = 0
            try:
                for event in process:
                    seen += len(event.data) if isinstance(event, Output) else 0
            except OutputGap:
                pass
            assert seen <= 5 * MIB

    def test_many_processes_run_at_once(self, remote: ExecServerClient) -> None:
        def one(number: int) -> bytes:
            return (
                remote.start(["sh", "-c", f"sleep 0.0{number % 10}; echo {number}"])
                .communicate(timeout=30)
                .stdout
            )

        workers = [gevent.spawn(one, number) for number in range(40)]
        assert [worker.get(timeout=40) for worker in workers] == [b"%d\n" % number for number in range(40)]

    def test_reading_by_position_pages_through_the_output(self, remote: ExecServerClient) -> None:
        process = remote.start(
            ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.01; done"], collect_output=False
        )
        data = b""
        while True:
            state = process.read(max_bytes=1, wait=10)
            data += b"".join(chunk.data for chunk in state.chunks)
            if state.closed and not state.chunks:
                break
        assert data == b"1\n2\n3\n4\n5\n"
        assert state.exit_code == 0


class TestExtensions:
    """What only some servers have; each test asks the server first."""

    def test_closing_stdin_ends_cat(self, remote: ExecServerClient) -> None:
        process = remote.start(["cat"], pipe_stdin=True)
        if not remote.extensions.process_close_stdin:
            with pytest.raises(UnsupportedByServer):
                process.communicate(b"x")
            return
        assert process.communicate(b"some input", timeout=20).stdout == b"some input"

    def test_large_input_flows_through(self, remote: ExecServerClient) -> None:
        if not remote.extensions.process_close_stdin:
            pytest.skip("the server does not announce process/closeStdin")
        data = os.urandom(3 * MIB)
        assert remote.start(["cat"], pipe_stdin=True).communicate(data, timeout=40).stdout == data

    def test_a_terminal_is_resized(self, remote: ExecServerClient) -> None:
        process = remote.start(["sh", "-c", "stty size; read go; stty size"], tty=True)
        if not remote.extensions.process_resize:
            with pytest.raises(UnsupportedByServer):
                process.resize(30, 100)
            process.terminate()
            return
        assert process.next_event(20) == Output(1, "pty", b"24 80\r\n")
        process.resize(30, 100)
        process.write(b"\n")
        assert b"30 100" in collected(process, "pty")

    def test_processes_are_listed(self, remote: ExecServerClient) -> None:
        if not remote.extensions.process_list:
            with pytest.raises(MethodNotFoundError):
                remote.process_list()
            return
        process = remote.start(["sleep", "1000"], process_id="listed")
        (entry,) = remote.process_list()
        assert (entry.process_id, entry.argv, entry.running) == ("listed", ("sleep", "1000"), True)
        process.terminate()

    def test_other_signals_are_sent(self, remote: ExecServerClient) -> None:
        process = remote.start(["sleep", "1000"])
        if not remote.extensions.process_signals:
            with pytest.raises(RequestFailed, match="unknown variant"):
                process.signal("term")
            process.terminate()
            return
        process.signal("TERM")
        assert process.wait(20) == 143


class TestFiles:
    def test_the_life_of_a_file(self, remote: ExecServerClient, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "er" / "f ü%.txt"
        with pytest.raises(NotFoundError, match="No such file or directory"):
            remote.write_file(path, b"x")
        remote.create_directory(path.parent)
        remote.write_file(path, b"content")
        assert remote.read_file(path) == b"content"
        metadata = remote.get_metadata(path)
        assert (metadata.is_file, metadata.is_directory, metadata.size) == (True, False, 7)
        remote.copy(path, path.with_name("copy"))
        assert sorted(entry.file_name for entry in remote.read_directory(path.parent)) == ["copy", path.name]
        remote.remove(path)
        assert not path.exists()
        remote.remove(path)
        with pytest.raises(NotFoundError):
            remote.remove(path, force=False)

    def test_links_are_resolved(self, remote: ExecServerClient, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path)
        assert remote.canonicalize(tmp_path / "link").native() == os.fsencode(tmp_path)
        assert remote.get_metadata(tmp_path / "link").is_symlink

    def test_names_that_are_no_text_work(self, remote: ExecServerClient, tmp_path: Path) -> None:
        raw = os.fsencode(tmp_path) + b"/\xff\xfe"
        remote.write_file(raw, b"odd")
        assert remote.read_file(raw) == b"odd"
        assert remote.read_file(os.fsdecode(raw)) == b"odd"

    def test_uris_are_paths_too(self, remote: ExecServerClient, tmp_path: Path) -> None:
        (tmp_path / "a b").write_bytes(b"x")
        assert remote.read_file(f"file://{tmp_path}/a%20b") == b"x"

    @pytest.mark.parametrize("path", ["relative", "", "~/x", "http://host/x", "file:///x?query"])
    def test_what_is_no_absolute_path_is_refused(self, remote: ExecServerClient, path: str) -> None:
        with pytest.raises(execserver.client.InvalidPath):
            remote.read_file(path)

    def test_a_large_file_is_read_block_by_block(self, remote: ExecServerClient, tmp_path: Path) -> None:
        data = os.urandom(9 * MIB + 1)
        (tmp_path / "large").write_bytes(data)
        assert remote.read_file(tmp_path / "large") == data

    def test_a_large_file_is_written_in_one_message_of_fragments(
        self, remote: ExecServerClient, tmp_path: Path
    ) -> None:
        data = os.urandom(20 * MIB)
        remote.write_file(tmp_path / "large", data)
        assert (tmp_path / "large").read_bytes() == data

    def test_an_open_file_gives_any_block(self, remote: ExecServerClient, tmp_path: Path) -> None:
        data = os.urandom(2 * MIB + 100)
        (tmp_path / "f").write_bytes(data)
        with remote.open_file(tmp_path / "f") as file:
            assert file.read_block(MIB, 10) == data[MIB : MIB + 10]
            assert [len(block) for block in file] == [MIB, MIB, 100]
            assert file.read_block(10 * MIB) == b""
        with pytest.raises(NotFoundError):
            file.read_block(0)

    def test_writing_block_by_block(self, remote: ExecServerClient, tmp_path: Path) -> None:
        info = remote.server_info
        if info is None or not info.capabilities.file_write_streaming:
            with pytest.raises(UnsupportedByServer):
                remote.open_file(tmp_path / "f", "replace")
            return
        with remote.open_file(tmp_path / "f", "replace") as file:
            file.write_block(3, b"def")
            file.write_block(0, b"abc")
        assert (tmp_path / "f").read_bytes() == b"abcdef"

    def test_a_walk_lists_everything_below(self, remote: ExecServerClient, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").write_bytes(b"")
        try:
            found = remote.walk(tmp_path)
        except MethodNotFoundError:
            pytest.skip("the server has no fs/walk")
        assert [(entry.path.native(), entry.kind.value) for entry in found.entries] == [
            (os.fsencode(tmp_path / "d"), "directory"),
            (os.fsencode(tmp_path / "d" / "f"), "file"),
        ]
        shallow = FsWalkOptions(
            max_depth=0, max_directories=1, max_entries=10, follow_directory_symlinks=False
        )
        assert len(remote.walk(tmp_path, shallow).entries) == 1


class TestTheRest:
    def test_the_machine_is_described(self, remote: ExecServerClient) -> None:
        assert remote.environment_info().shell.path.startswith("/")

    def test_its_status_is_asked_for(self, remote: ExecServerClient) -> None:
        try:
            status = remote.environment_status()
        except MethodNotFoundError:
            pytest.skip("the server has no environment/status")
        assert status.status.value == "ready"

    def test_its_sandboxes_are_described(self, remote: ExecServerClient) -> None:
        if not remote.extensions.environment_sandbox:
            pytest.skip("the server has no environment/sandbox")
        answer = remote.environment_sandbox()
        assert {policy.name for policy in answer.policies} >= {"read-only", "workspace-write", "narrow"}
        for policy in answer.policies:
            assert (policy.back_end is None) == (policy.cure is not None)

    def test_any_method_can_be_called(self, remote: ExecServerClient) -> None:
        answer = remote.call("environment/info", {})
        assert isinstance(answer, dict)
        assert "shell" in answer
        with pytest.raises(MethodNotFoundError, match="does not implement `no/such`"):
            remote.call("no/such")

    def test_the_environment_names_the_server(self, server: ServerProcess) -> None:
        with ExecServerClient.from_env(environ={"CODEX_EXEC_SERVER_URL": f"  {server.url} "}) as client:
            assert client.session_id

    @pytest.mark.parametrize("value", [None, "", "  ", "none", "NONE"])
    def test_an_environment_without_a_server_is_an_error(self, value: str | None) -> None:
        with pytest.raises(InvalidUrl, match="CODEX_EXEC_SERVER_URL"):
            ExecServerClient.from_env(environ={} if value is None else {"CODEX_EXEC_SERVER_URL": value})

    def test_a_server_can_be_a_child(self, flavour: Flavour) -> None:
        command = [*flavour.argv, "--listen", "stdio"]
        env = base_environment() | flavour.env
        with ExecServerClient.connect_stdio(command, env=env) as client:
            assert client.start(["echo", "x"]).communicate(timeout=20).stdout == b"x\n"

    def test_the_example_of_the_package_runs_as_a_plain_script(
        self, server: ServerProcess, tmp_path: Path
    ) -> None:
        text = execserver.client.__doc__ or ""
        example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
        assert "ws://127.0.0.1:8765" in example
        script = example.replace("ws://127.0.0.1:8765", server.url).replace("/tmp", str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env=base_environment(),
            capture_output=True,
            timeout=50,
        )
        assert done.stderr == b""
        lines = done.stdout.decode().splitlines()
        assert sorted(lines[:2]) == [r"stderr b'err\n'", r"stdout b'out\n'"]
        assert lines[2] == "exit code 3"
        assert lines[-1] == "b'hello'"
