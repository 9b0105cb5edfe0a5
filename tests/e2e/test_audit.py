"""`--audit` of a real server: what is recorded, what never is, and who can neither see nor change it."""

from __future__ import annotations

import base64
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.audit.reading import records, verify
from tests.support.peer import RemoteError
from tests.support.running import run, start, terminate
from tests.support.sandboxes import context, managed, read_only, rule, special, workspace_write
from tests.support.server_process import ServerProcess, base_environment
from tests.support.waiting import wait_until

SECRET = "hunter2-hunter2-hunter2"
KILLS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    env = {**base_environment(), "MY_API_TOKEN": SECRET}
    with ServerProcess(options=("--audit", str(folder)), env=env) as running:
        yield running


def told(folder: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in records(str(folder)) if record["event"] == event]


def test_a_start_and_its_end_are_recorded(server: ServerProcess, folder: Path) -> None:
    with server.connect() as peer:
        session = peer.open_session(client_name="tester")
        run(peer, "p", ["sh", "-c", "exit 3"])
        start(peer, "q", "sleep 100")
        terminate(peer, "q")
        wait_until(lambda: len(told(folder, "exit")) == 2, 20)
    (opened,) = told(folder, "session")
    assert (opened["session"], opened["clientName"]) == (session[:8], "tester")
    first, second = told(folder, "start")
    assert (first["process"], first["argv"], first["cwd"]) == ("p", ["sh", "-c", "exit 3"], "/")
    assert first["sandboxed"] is False
    ends = {end["process"]: end for end in told(folder, "exit")}
    assert (ends["p"]["exitCode"], ends["p"]["cause"], ends["p"]["pid"]) == (3, "exited", first["pid"])
    assert (ends["q"]["cause"], ends["q"]["pid"]) == ("terminated", second["pid"])
    assert session not in (folder / "audit-00000001.jsonl").read_text()  # who knows it can resume it


def test_changes_of_files_are_recorded_by_path_and_reads_are_not(
    server: ServerProcess, folder: Path, tmp_path: Path
) -> None:
    with server.connect() as peer:
        peer.open_session()
        path = f"file://{tmp_path}/a"
        content = base64.b64encode(b"content of the file").decode()
        peer.call("fs/writeFile", {"path": path, "dataBase64": content})
        peer.call("fs/readFile", {"path": path})
        peer.call("fs/copy", {"sourcePath": path, "destinationPath": f"{path}b", "recursive": False})
        peer.call("fs/open", {"path": path, "handleId": "h"})
        peer.call("fs/remove", {"path": path})
        with pytest.raises(RemoteError):
            peer.call("fs/remove", {"path": path, "force": False})
    changes = [
        (each["method"], each.get("path") or each["destinationPath"]) for each in told(folder, "change")
    ]
    assert changes == [("fs/writeFile", path), ("fs/copy", f"{path}b"), ("fs/remove", path)]
    (refusal,) = told(folder, "refusal")
    assert (refusal["method"], refusal["path"]) == ("fs/remove", path)
    assert "No such file or directory" in refusal["why"]
    assert "content of the file" not in (folder / "audit-00000001.jsonl").read_text()
    assert content not in (folder / "audit-00000001.jsonl").read_text()


def test_many_files_of_one_request_are_recorded_by_their_names(
    server: ServerProcess, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("x")
    kinds = {"a": "directory", "a/b": "file", "old": "absent"}
    content = base64.b64encode(b"content of the file").decode()
    entries = [
        {
            "name": base64.b64encode(name.encode()).decode(),
            "kind": kind,
            **({"content": content} if kind == "file" else {}),
        }
        for name, kind in kinds.items()
    ]
    with server.connect() as peer:
        peer.open_session()
        assert peer.call("fs/writeMany", {"path": f"file://{tmp_path}", "entries": entries}) == {"errors": []}
    (change,) = told(folder, "change")
    assert (change["path"], change["names"], change["removed"]) == (
        f"file://{tmp_path}",
        ["a", "a/b"],
        ["old"],
    )
    assert content not in (folder / "audit-00000001.jsonl").read_text()
    assert not (tmp_path / "old").exists()
    assert 'names=["a", "a/b"] removed=["old"]' in audit("show", str(folder)).stdout


def test_members_that_a_request_does_not_have_hide_nothing_of_it(
    server: ServerProcess, folder: Path, tmp_path: Path
) -> None:
    """A request may have any members besides its own; those of others may be of any type."""
    path = f"file://{tmp_path}/a"
    strange: list[dict[str, Any]] = [{"port": "x"}, {"url": 7}, {"argv": [1]}, {"signal": {"path": "/b"}}]
    with server.connect() as peer:
        peer.open_session()
        for number, members in enumerate(strange):
            opened = {"path": path, "handleId": f"h{number}", "mode": "replace"}
            peer.call("fs/open", {**opened, **members})
            peer.call("fs/createDirectory", {"path": f"{path}.{number}", **members})
        peer.call("fs/remove", {"path": path, "argv": [SECRET], "command": [[SECRET]], "url": [SECRET]})
        with pytest.raises(RemoteError):
            peer.call("fs/remove", {"path": {"a": 1}})
    changes = [(each["method"], each["path"]) for each in told(folder, "change")]
    for number in range(len(strange)):
        assert changes[2 * number] == ("fs/open", path)
        assert changes[2 * number + 1] == ("fs/createDirectory", f"{path}.{number}")
    assert changes[2 * len(strange) :] == [("fs/remove", path)]
    assert told(folder, "refusal")[0]["path"] == '{"a":1}'
    assert SECRET not in (folder / "audit-00000001.jsonl").read_text()


def test_secrets_stay_out_of_it(server: ServerProcess, folder: Path) -> None:
    with server.connect() as peer:
        peer.open_session()
        run(peer, "p", ["sh", "-c", f"echo {SECRET}; : --password=opensesame1", f"--token={SECRET}"])
        with pytest.raises(RemoteError):
            peer.call(
                "http/request", {"requestId": "r", "method": "GET", "url": "http://u:pw9@127.0.0.1:1/a?k=v9"}
            )
    text = (folder / "audit-00000001.jsonl").read_text()
    for secret in (SECRET, "opensesame1", "pw9", "v9"):
        assert secret not in text
    assert told(folder, "refusal")[0]["url"] == "http://127.0.0.1:1/a"


def test_a_killed_server_loses_no_record_and_the_next_one_goes_on(folder: Path) -> None:
    for number in range(3):
        with ServerProcess(options=("--audit", str(folder))) as server:
            with server.connect() as peer:
                peer.open_session()
                run(peer, "p", "true")
                wait_until(lambda: len(told(folder, "exit")) == number + 1, 20)  # noqa: B023
            server.signal(signal.SIGKILL)
            server.wait()
    assert len(told(folder, "begin")) == 3
    assert told(folder, "end") == []
    assert verify(str(folder)).torn == 0


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_kills_lose_no_record_that_was_answered_and_break_no_chain(
    folder: Path, tmp_path: Path
) -> None:
    answered: set[str] = set()
    for number in range(KILLS):
        with ServerProcess(options=("--audit", str(folder))) as server:
            peer = server.connect()
            peer.open_session()
            # All at once, and killed behind one of the answers: somewhere in the work on the next ones.
            for each in range(20):
                params = {"path": f"file://{tmp_path}/{number}-{each}", "dataBase64": ""}
                peer.send({"id": 100 + each, "method": "fs/writeFile", "params": params})
            for each in range(number % 20):
                peer.take({"id": 100 + each})
                answered.add(f"file://{tmp_path}/{number}-{each}")
            server.signal(signal.SIGKILL)
            server.wait()
            peer.close()
    with ServerProcess(options=("--audit", str(folder))) as server, server.connect() as last:
        last.open_session()  # this server has cut what was torn
    found = verify(str(folder))
    assert found.torn == 0
    assert answered <= {each["path"] for each in told(folder, "change")}
    assert (len(told(folder, "begin")), len(told(folder, "end"))) == (KILLS + 1, 1)


def test_the_head_is_told_and_found_again(server: ServerProcess, folder: Path) -> None:
    with server.connect() as peer:
        peer.open_session()
        head = peer.call("audit/head", {})
        run(peer, "p", "true")
    assert verify(str(folder), head["sha256"]).last > head["records"]
    done = audit("verify", str(folder), "--head", head["sha256"])
    assert done.returncode == 0
    assert done.stdout.startswith("intact: ")
    missing = audit("verify", str(folder), "--head", "0" * 64)
    assert missing.returncode == 1
    assert "no record has the head" in missing.stderr


def test_without_a_log_there_is_no_head_and_nothing_is_announced() -> None:
    with ServerProcess() as server, server.connect() as peer:
        peer.open_session()
        with pytest.raises(RemoteError, match="this server writes no audit log"):
            peer.call("audit/head", {})
        assert peer.call("environment/info", {})["execserver"]["auditHead"] is False


def audit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "execserver", "audit", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_people_are_shown_what_was_done_without_what_a_terminal_obeys(
    server: ServerProcess, folder: Path
) -> None:
    with server.connect() as peer:
        session = peer.open_session()
        run(peer, "p", ["sh", "-c", "true", "\x1b[2J\u202e", "a\nb"])
        wait_until(lambda: told(folder, "exit"), 20)
    shown = audit("show", str(folder), "--session", session)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "\u202e" not in shown.stdout
    assert 'argv=["sh", "-c", "true",' in shown.stdout
    assert audit("show", str(folder), "--session", "00000000-x").stdout == ""
    assert audit("show", str(folder), "--since", "1h", "--json").stdout.count("\n") == len(
        list(records(str(folder)))
    )
    assert audit("show", str(folder), "--since", "soon").returncode == 2


@pytest.mark.parametrize("words", [(), ("verify",), ("prune", "x"), ("verify", "a", "b")])
def test_wrong_usage_is_told(words: tuple[str, ...]) -> None:
    done = audit(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_a_folder_that_cannot_be_it_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        done = subprocess.run(
            [sys.executable, "-m", "execserver", "--audit", str(place)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: {place}: Not a directory")
        assert done.stdout == ""


@pytest.mark.parametrize(("room", "last", "again"), [(0, "exit", ["lost"]), (200, "lost", ["lost", "lost"])])
def test_a_required_log_that_cannot_be_written_refuses_what_acts(
    room: int, last: str, again: list[str], folder: Path, tmp_path: Path
) -> None:
    """The disk is full to the server: its files may not become larger than this.

    Where there is room for a short record but none for a start, the log ends with how many are missing.
    """
    # Else it would leave byte code behind that is cut at that size.
    env = {**base_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ("--audit", str(folder), "--audit-required")
    with ServerProcess(options=options, env=env) as server, server.connect() as peer:
        peer.open_session()
        run(peer, "p", "true")
        wait_until(lambda: told(folder, "exit"), 20)
        size = (folder / "audit-00000001.jsonl").stat().st_size + room
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))
        run(peer, "q", "true")  # nothing was missing before this
        with pytest.raises(RemoteError) as refused:
            run(peer, "r", "true")
        assert "the audit log, which is required here, cannot be written: " in str(refused.value)
        assert str(refused.value).endswith(("No space left on device", "File too large"))
        with pytest.raises(RemoteError, match="cannot be written"):
            peer.call("fs/writeFile", {"path": f"file://{tmp_path}/x", "dataBase64": ""})
        assert not (tmp_path / "x").exists()
        peer.call("fs/readFile", {"path": "file:///proc/version"})
        verdict = verify(str(folder))
        assert [record["event"] for record in records(str(folder))][-1] == last
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))
        run(peer, "s", "true")
    missing = told(folder, "lost")
    assert [record["event"] for record in missing] == again
    # A start and its end, and two refusals.
    assert sum(record["records"] for record in missing) == 4
    assert [each["process"] for each in told(folder, "start")] == ["p", "s"]
    assert verify(str(folder), verdict.head).torn == 0


def test_a_required_log_that_has_room_for_short_records_only_lets_nothing_long_be_done(folder: Path) -> None:
    """Else each refusal that is told would let a command through that is not."""
    env = {**base_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ("--audit", str(folder), "--audit-required")
    with ServerProcess(options=options, env=env) as server, server.connect() as peer:
        peer.open_session()
        run(peer, "p", "true")
        wait_until(lambda: told(folder, "exit"), 20)
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        size = (folder / "audit-00000001.jsonl").stat().st_size + 8000
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))
        words = ["true", *("x" * 1000 for _ in range(12))]
        run(peer, "q", words)
        for number in range(5):
            with pytest.raises(RemoteError, match="cannot be written"):
                run(peer, f"r{number}", words)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert [each["process"] for each in told(folder, "start")] == ["p"]
    assert [each["process"] for each in told(folder, "exit")] == ["p", "q"]
    assert (
        sum(each["records"] for each in told(folder, "lost")) == 6
    )  # a start, and refusals with their words


@pytest.mark.parametrize("policy", ["read-only", "workspace-write", "all folders"])
def test_a_sandboxed_command_neither_sees_nor_changes_it(
    server: ServerProcess, folder: Path, tmp_path: Path, policy: str
) -> None:
    contexts = {
        "read-only": read_only(tmp_path),
        "workspace-write": workspace_write(tmp_path),
        "all folders": context(managed(special("root", "read"), rule(tmp_path.parent, "write")), tmp_path),
    }
    script = (
        f"cat {folder}/*; ls -A {folder}; echo x >> {folder}/audit-00000001.jsonl;"
        f"rm -rf {folder}/audit-00000001.jsonl; mv {folder} {folder}.gone;"
        f"mkdir {folder}; echo done"
    )
    with server.connect() as peer:
        peer.open_session()
        outcome = run(peer, "p", ["sh", "-c", script], sandbox=contexts[policy], cwd=f"file://{tmp_path}")
        assert outcome.stdout == b"done\n"
        assert b"begin" not in outcome.stdout + outcome.stderr
        with pytest.raises(RemoteError):
            peer.call("fs/readFile", {"path": f"file://{folder}/lock", "sandbox": contexts[policy]})
        assert verify(str(folder)).torn == 0
        assert told(folder, "start")[-1]["sandboxed"] is True
