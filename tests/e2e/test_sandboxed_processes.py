"""Processes with a sandbox, on pipes and terminals: what they may do, and what is told of it."""

from __future__ import annotations

import base64
import os
import re
import time

import pytest

from tests.e2e.sandbox_places import Place
from tests.support.peer import Json, RemoteError
from tests.support.running import PATH, start
from tests.support.sandboxes import (
    context,
    deny_glob,
    managed,
    read_only,
    rule,
    special,
    workspace_write,
)

ours_only = pytest.mark.ours_only("what the reference does is in docs/compatibility.md")
READ_ONLY = b"Read-only file system"


# --- files -------------------------------------------------------------------------------------------------


def test_everything_is_read_and_nothing_written(place: Place) -> None:
    found = place.run("cat f ../other/f; echo x > g", read_only(place.ws))
    assert (found.stdout, found.exit_code) == (b"inout", 2)
    assert READ_ONLY in found.stderr
    assert place.denied()
    assert not (place.ws / "g").exists()


def test_the_workspace_is_written_and_nothing_beside_it(place: Place) -> None:
    found = place.run("echo x > g; cat g; echo y > ../other/g", workspace_write(place.ws))
    assert (found.stdout, found.exit_code) == (b"x\n", 2)
    assert READ_ONLY in found.stderr
    assert ((place.ws / "g").read_text(), (place.other / "g").exists()) == ("x\n", False)


def test_workspace_roots_say_what_the_project_is(place: Place) -> None:
    sandbox = context(
        managed(special("root", "read"), special("project_roots", "write")),
        place.ws,
        workspaceRoots=[f"file://{place.other}"],
    )
    found = place.run("echo x > ../other/g; echo y > g", sandbox)
    assert (found.exit_code, (place.other / "g").read_text(), (place.ws / "g").exists()) == (2, "x\n", False)


def test_a_program_of_the_system_runs_and_a_missing_root_is_passed_over(place: Place) -> None:
    sandbox = read_only(place.ws, rule(place.folder / "missing", "write"))
    assert b"sh" in place.run(["ls", "/bin/"], sandbox).stdout


def test_the_usual_devices_are_there(place: Place) -> None:
    script = (
        "echo x > /dev/null; for d in null zero full random urandom tty; do test -c /dev/$d || echo $d; done"
    )
    found = place.run(script, read_only(place.ws))
    assert (found.stdout, found.stderr, found.exit_code) == (b"", b"", 0)


def test_shared_memory_as_a_root_is_the_hosts(place: Place) -> None:
    name = f"/dev/shm/sandboxed-{os.getpid()}"
    try:
        found = place.run(f"echo x > {name}", read_only(place.ws, rule("/dev/shm", "write")))
        assert (found.stderr, found.exit_code) == (b"", 0)
        assert os.path.exists(name)
    finally:
        if os.path.exists(name):
            os.unlink(name)


def test_what_is_denied_below_the_root_is_hidden(place: Place) -> None:
    place.make("other/secret", "hidden")
    sandbox = read_only(place.ws, rule(place.other, "deny"))
    found = place.run("cat ../other/secret", sandbox)
    assert (found.stdout, found.exit_code) == (b"", 1)


def test_what_is_denied_below_a_writable_root_is_neither_read_nor_written(place: Place) -> None:
    place.make("ws/private/key", "hidden")
    sandbox = workspace_write(place.ws, rule(place.ws / "private", "deny"))
    found = place.run("cat private/key; echo x > private/new; rmdir private; echo y > g", sandbox)
    assert found.stdout == b""
    assert os.listdir(place.ws / "private") == ["key"]
    assert (place.ws / "g").read_text() == "y\n"


def test_a_writable_folder_below_a_denied_one_works(place: Place) -> None:
    place.make("ws/private/key", "hidden")
    place.make("ws/private/open/f")
    sandbox = workspace_write(
        place.ws, rule(place.ws / "private", "deny"), rule(place.ws / "private" / "open", "write")
    )
    found = place.run("echo x > private/open/g; cat private/key", sandbox)
    assert (found.stdout, found.exit_code) == (b"", 1)
    assert (place.ws / "private" / "open" / "g").read_text() == "x\n"


def test_a_missing_denied_file_cannot_be_made_and_leaves_nothing(place: Place) -> None:
    sandbox = workspace_write(place.ws, rule(place.ws / ".env", "deny"))
    found = place.run("echo x > .env; echo rc=$?; cat .env", sandbox)
    assert found.stdout == b"rc=2\n"
    assert not (place.ws / ".env").exists()


@ours_only
def test_what_a_pattern_matches_is_hidden(place: Place) -> None:
    place.make("ws/a/b/.env", "hidden")
    place.make("ws/a/b/env", "shown")
    found = place.run("cat a/b/env a/b/.env", workspace_write(place.ws, deny_glob("**/*.env")))
    assert (found.stdout, found.exit_code) == (b"shown", 1)


def test_an_outside_file_reached_by_a_hard_link_is_written_as_the_path_says(place: Place) -> None:
    os.link(place.other / "f", place.ws / "hard")
    found = place.run("echo new > hard", workspace_write(place.ws))
    assert (found.exit_code, (place.other / "f").read_text()) == (0, "new\n")


def test_a_link_out_of_the_workspace_is_not_written_through(place: Place) -> None:
    os.symlink(place.other, place.ws / "link")
    found = place.run("echo new > link/g", workspace_write(place.ws))
    assert (found.exit_code, (place.other / "g").exists()) == (2, False)


@ours_only
def test_a_narrow_policy_shows_nothing_else(place: Place) -> None:
    sandbox = context(managed(special("minimal", "read"), rule(place.ws, "write")), place.ws)
    found = place.run(f"cat f; cat {place.other}/f; echo x > {place.other}/g; echo y > g; ls /", sandbox)
    assert found.stdout.startswith(b"in")
    assert b"out" not in found.stdout
    assert ((place.ws / "g").read_text(), (place.other / "g").exists()) == ("y\n", False)


# --- network and privileges --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "curl -s --max-time 2 http://127.0.0.1:1/",
        "wget -q -T 2 -t 1 http://127.0.0.1:1/",
        "ping -c 1 -W 1 127.0.0.1",
        "nc -w 1 127.0.0.1 1",
        "ssh -o BatchMode=yes -o ConnectTimeout=1 127.0.0.1 true",
        "getent ahosts host.invalid",
        "bash -c 'echo x > /dev/tcp/127.0.0.1/80'",
    ],
)
def test_programs_have_no_network(place: Place, command: str) -> None:
    assert place.run(command, read_only(place.ws)).exit_code != 0


def test_a_socket_is_refused_and_a_socket_pair_is_not(place: Place) -> None:
    script = (
        "import socket; a, b = socket.socketpair(); a.sendmsg([b'x']); print(b.recvmsg(1)[0])\n"
        "try: socket.create_connection(('127.0.0.1', 1), 1)\n"
        "except OSError as error: print(error)"
    )
    found = place.run(["python3", "-c", script], read_only(place.ws))
    assert found.stdout == b"b'x'\n[Errno 1] Operation not permitted\n"


def test_with_the_network_enabled_sockets_work(place: Place) -> None:
    script = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print('ok')"
    found = place.run(["python3", "-c", script], workspace_write(place.ws, network="enabled"))
    assert found.stdout == b"ok\n"


@ours_only
def test_there_are_no_capabilities_and_none_can_be_gained(place: Place) -> None:
    found = place.run("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status", read_only(place.ws))
    assert dict(line.split(b":\t") for line in found.stdout.splitlines()) == {
        b"CapEff": b"0000000000000000",
        b"CapBnd": b"0000000000000000",
        b"NoNewPrivs": b"1",
        b"Seccomp": b"2",
    }


def test_only_its_own_processes_and_descriptors_are_seen(place: Place) -> None:
    found = place.run("ls /proc | grep -c '^[0-9]'; ls /proc/self/fd | wc -l", read_only(place.ws))
    processes, descriptors = map(int, found.stdout.split())
    assert processes <= 5
    assert descriptors == 4  # and the one of the listing


@pytest.mark.parametrize(
    ("permissions", "no_new_privs"),
    [
        ({"type": "disabled"}, b"0"),
        ({"type": "external", "network": "enabled"}, b"0"),
        ({"type": "external", "network": "restricted"}, b"1"),
        ({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"}, b"1"),
        (managed(special("root", "write")), b"1"),
        (managed(special("root", "write"), network="enabled"), b"0"),
    ],
)
def test_policies_that_restrict_no_files(place: Place, permissions: Json, no_new_privs: bytes) -> None:
    script = f"echo x > {place.other}/g; grep NoNewPrivs /proc/self/status; nc -w 1 127.0.0.1 1"
    found = place.run(script, context(permissions, place.ws))
    assert found.stdout.split() == [b"NoNewPrivs:", no_new_privs]
    assert (place.other / "g").read_text() == "x\n"


# --- the program, its arguments, its end -------------------------------------------------------------------


@ours_only
def test_the_environment_is_exactly_what_was_asked_for(place: Place) -> None:
    found = place.run(["env"], read_only(place.ws), env={**PATH, "A": "1", "LD_PRELOAD": ""})
    assert sorted(found.stdout.split()) == [b"A=1", b"LD_PRELOAD=", b"PATH=/usr/bin:/bin"]


@ours_only
def test_arg0_is_kept(place: Place) -> None:
    found = place.run(["sh", "-c", "echo $0"], read_only(place.ws), arg0="custom")
    assert found.stdout == b"custom\n"


@ours_only
@pytest.mark.parametrize("program", ["/no/such/prog", "no-such-prog", ""])
@pytest.mark.parametrize("permissions", [managed(special("root", "read")), {"type": "disabled"}])
def test_a_missing_program_is_told_by_its_exit(place: Place, program: str, permissions: Json) -> None:
    found = place.run([program], context(permissions, place.ws))
    assert found.exit_code == 101
    text = f"Failed to execvp {program}: No such file or directory (os error 2)\n"
    assert found.stderr.decode() == f"codex-linux-sandbox: {text}"
    assert place.denied()


@ours_only
def test_a_missing_directory_is_an_error_and_a_hidden_one_makes_way_for_another(place: Place) -> None:
    with pytest.raises(RemoteError) as caught:
        place.run("true", read_only(place.ws), cwd=f"file://{place.folder}/missing")
    assert (caught.value.code, caught.value.message) == (-32603, "No such file or directory (os error 2)")
    narrow = context(managed(special("minimal", "read")), place.ws)
    found = place.run("/bin/pwd; printenv PWD", narrow)
    assert (found.exit_code, found.stdout) == (0, b"/\n/\n")
    link = place.folder / "link"
    link.symlink_to(place.ws)
    found = place.run("true", narrow, cwd=f"file://{link}")
    assert (found.exit_code, found.stderr.decode()) == (
        1,
        f"codex-linux-sandbox: Can't chdir to {place.ws}: No such file or directory\n",
    )


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -SYS $$", 159)])
def test_exit_codes(place: Place, tty: bool, script: str, code: int) -> None:
    assert place.run(script, read_only(place.ws), tty=tty).exit_code == code
    assert place.denied() is (code == 159)


@ours_only
def test_the_guess_is_told_with_the_exit_too(place: Place) -> None:
    place.begin("echo Permission denied; exit 5", read_only(place.ws))
    place.peer.call("process/read", {"processId": "p1", "waitMs": 5000, "afterSeq": 1})
    exited = [m for m in place.peer.kept if m.get("method") == "process/exited"]
    while not exited:
        message = place.peer.receive(20)
        assert message is not None
        exited = [message] if message.get("method") == "process/exited" else []
    assert exited[0]["params"]["sandboxDenied"] is True


def test_a_terminal(place: Place) -> None:
    found = place.run("tty; echo x > g", read_only(place.ws), tty=True)
    assert found.pty.startswith(b"/dev/")
    assert READ_ONLY in found.pty
    assert (found.exit_code, place.denied()) == (2, True)


@ours_only
def test_a_terminal_takes_input_and_the_interrupt(place: Place) -> None:
    name = place.begin(
        "trap 'echo got; exit 3' INT; echo ready; read x; echo $x; while :; do sleep 0.05; done",
        read_only(place.ws),
        tty=True,
    )
    peer = place.peer

    def until(needle: bytes) -> None:
        text, after, end = b"", 0, time.monotonic() + 20
        while needle not in text:
            assert time.monotonic() < end, text
            page = peer.call("process/read", {"processId": name, "afterSeq": after, "waitMs": 1000})
            text += b"".join(base64.b64decode(chunk["chunk"]) for chunk in page["chunks"])
            after = page["nextSeq"] - 1

    until(b"ready")
    peer.call("process/write", {"processId": name, "chunk": "aGVsbG8K", "writeId": "1"})
    until(b"hello\r\nhello")
    peer.call("process/write", {"processId": name, "chunk": "Aw==", "writeId": "2"})
    until(b"got")


def test_terminate_kills_everything_inside(place: Place) -> None:
    seconds = str(10_000 + os.getpid())  # no other run of the tests sleeps for as long
    script = f"setsid sleep {seconds} & sleep {seconds} & echo ready; wait"
    name = place.begin(script, read_only(place.ws))
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    assert place.peer.call("process/terminate", {"processId": name}) == {"running": True}
    end = time.monotonic() + 20
    while not place.read()["closed"]:
        assert time.monotonic() < end
    assert sleeping(seconds) == []


@ours_only
def test_an_interrupt_reaches_the_command(place: Place) -> None:
    name = place.begin(
        "trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.05; done", read_only(place.ws)
    )
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    place.peer.call("process/signal", {"processId": name, "signal": "interrupt"})
    end = time.monotonic() + 20
    while not (page := place.read())["closed"]:
        assert time.monotonic() < end
    assert page["exitCode"] == 3


def test_what_a_command_leaves_behind_ends_with_it(place: Place) -> None:
    found = place.run("setsid sleep 988 > /dev/null 2>&1 & echo done", read_only(place.ws))
    assert found.stdout == b"done\n"
    assert sleeping("988") == []


def sleeping(seconds: str) -> list[str]:
    """Return the processes that sleep so long."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if file.read().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                        found.append(name)
            except OSError:
                continue
    return found


# --- answers -----------------------------------------------------------------------------------------------


@ours_only
def test_a_start_tells_how_the_process_is_held(place: Place) -> None:
    members: Json = {"cwd": f"file://{place.ws}"}
    answer = start(place.peer, "a", "true", **members, sandbox=read_only(place.ws))
    assert answer == {"processId": "a", "sandboxType": "linuxSeccomp"}
    answer = start(place.peer, "b", "true", **members, sandbox=context({"type": "disabled"}))
    assert answer == {"processId": "b", "sandboxType": "linuxSeccomp"}
    assert start(place.peer, "c", "true", **members) == {"processId": "c", "sandboxType": "none"}


@ours_only
def test_a_policy_that_cannot_be_enforced_is_refused_with_the_reason(place: Place) -> None:
    os.symlink(place.other, place.ws / ".codex")
    found = place.run("echo x > g", workspace_write(place.ws))
    assert (found.exit_code, (place.ws / "g").exists()) == (1, False)
    text = found.stderr.decode().rstrip("\n")
    assert re.match(
        r"error building bubblewrap command: Fatal error: cannot enforce sandbox read-only path ", text
    )
    assert place.read()["sandboxRefusal"] == text
    assert place.denied()


def test_sandboxed_processes_may_start_all_at_once(place: Place) -> None:
    names = [place.begin("echo x >> log; echo y > .git/x", workspace_write(place.ws)) for _ in range(12)]
    end = time.monotonic() + 20
    for name in names:
        while not place.peer.call("process/read", {"processId": name, "waitMs": 1000})["closed"]:
            assert time.monotonic() < end
    assert (place.ws / "log").read_text() == "x\n" * 12
    assert sorted(os.listdir(place.ws)) == ["f", "log"]
