"""Processes on a terminal of their own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.accounts import account_shell
from tests.support.peer import RemoteError
from tests.support.proc import stat_fields
from tests.support.running import PATH, Outcome, outcome, output_until, run, start, terminate, write
from tests.support.ws_peer import WsPeer

SESSION, TTY_NUMBER, FOREGROUND = 3, 4, 5  # fields of /proc/PID/stat from the state on


def shown(peer: WsPeer, command: str | list[str], **members: object) -> list[str]:
    """Run a command on a terminal and return the lines it showed."""
    collected = Outcome()
    start(peer, "shown", command, tty=True, **members)
    lines = outcome(peer, "shown", collected).pty.decode().split("\r\n")
    assert lines.pop() == ""
    return lines


def test_a_terminal_has_24_rows_and_80_columns_and_usual_modes(peer: WsPeer) -> None:
    size, modes = shown(peer, "stty size; stty -a | tr '\\n' ' '; echo")
    assert size == "24 80"
    words = modes.replace(";", "").split()
    assert {"icanon", "echo", "isig", "icrnl", "opost", "onlcr"} <= set(words)
    assert "iutf8" not in words


def test_every_stream_is_the_terminal(peer: WsPeer) -> None:
    names = shown(peer, "tty; tty <&1; tty <&2; exec 9</dev/tty && tty <&9")
    assert names[0].startswith("/dev/pts/")
    assert names[1:3] == [names[0]] * 2
    assert len(names) == 4


def test_the_process_leads_its_session_and_controls_the_terminal(peer: WsPeer) -> None:
    start(peer, "p", "echo $$; exec sleep 100", tty=True)
    pid = int(output_until(peer, "p", b"\n"))
    fields = stat_fields(pid)
    assert [int(fields[SESSION]), int(fields[FOREGROUND])] == [pid, pid]
    assert int(fields[TTY_NUMBER]) != 0
    assert terminate(peer, "p")


def test_everything_shown_is_one_stream(peer: WsPeer) -> None:
    result = run(peer, "p", "echo out; echo err >&2; echo dev >/dev/tty", tty=True)
    assert {stream for _, stream, _ in result.chunks} == {"pty"}
    assert result.pty == b"out\r\nerr\r\ndev\r\n"


def test_what_is_typed_is_echoed_and_read(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "read line; echo got $line", tty=True)
    assert write(peer, "p", b"typed\n", "w1") == "accepted"
    assert outcome(peer, "p", collected).pty == b"typed\r\ngot typed\r\n"


def test_control_d_ends_the_input(peer: WsPeer) -> None:
    start(peer, "p", "cat; echo over", tty=True)
    write(peer, "p", b"\x04", "w1")
    assert outcome(peer, "p").pty == b"over\r\n"


def test_control_c_interrupts(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.01; done", tty=True)
    output_until(peer, "p", b"ready", collected)
    write(peer, "p", b"\x03", "w1")
    result = outcome(peer, "p", collected)
    assert b"caught" in result.pty
    assert result.exit_code == 4


def test_the_environment_is_the_given_one_and_shell(peer: WsPeer) -> None:
    shell = account_shell() or "/bin/sh"
    assert sorted(shown(peer, ["env"], env={"A": "1", **PATH})) == sorted(
        ["A=1", "PATH=/usr/bin:/bin", f"SHELL={shell}"]
    )


def test_a_given_shell_is_kept(peer: WsPeer) -> None:
    assert "SHELL=/bin/other" in shown(peer, ["env"], env=PATH | {"SHELL": "/bin/other"})


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_without_its_folder_it_starts_in_the_home(peer: WsPeer, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.touch()
    home = tmp_path / "home"
    home.mkdir()
    assert shown(peer, ["pwd"], cwd=folder.as_uri(), env=PATH | {"HOME": str(home)}) == [str(home)]


def test_arg0_names_the_program(peer: WsPeer) -> None:
    assert shown(peer, ["no-such", "-c", "echo $0"], arg0="bash") == ["bash"]
    with pytest.raises(RemoteError, match="Unable to spawn custom because:\nNo viable candidates"):
        start(peer, "q", ["sh", "-c", "exit"], tty=True, arg0="custom")


def test_on_pipes_arg0_is_only_a_name(peer: WsPeer) -> None:
    result = run(peer, "p", ["bash", "-c", "tr '\\0' ' ' < /proc/$$/cmdline; exit"], arg0="named")
    assert result.stdout.startswith(b"named -c")


def test_many_lines_arrive_whole(peer: WsPeer) -> None:
    result = run(peer, "p", ["seq", "1", "30000"], tty=True)
    assert result.pty == b"".join(b"%d\r\n" % number for number in range(1, 30_001))


def test_closing_it_hangs_up_who_still_reads(peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "trap 'exit 3' HUP; echo ready; while :; do sleep 0.01; done", tty=True)
    output_until(peer, "p", b"ready", collected)
    assert terminate(peer, "p") is True
    assert outcome(peer, "p", collected).exit_code == 1


@pytest.mark.ours_only("an extension")
class TestResize:
    """`process/resize`."""

    def resize(self, peer: WsPeer, rows: int, cols: int, process_id: str = "p") -> object:
        return peer.call("process/resize", {"processId": process_id, "rows": rows, "cols": cols})

    def test_the_program_is_told_and_sees_the_new_size(self, peer: WsPeer) -> None:
        collected = Outcome()
        start(peer, "p", "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done", tty=True)
        output_until(peer, "p", b"ready", collected)
        assert self.resize(peer, 50, 132) == {}
        assert outcome(peer, "p", collected).pty == b"ready\r\n50 132\r\n"

    def test_the_largest_size(self, peer: WsPeer) -> None:
        start(peer, "p", "read go; stty size", tty=True)
        self.resize(peer, 65_535, 65_535)
        write(peer, "p", b"\n", "w")
        assert outcome(peer, "p").pty.endswith(b"65535 65535\r\n")

    @pytest.mark.parametrize(("rows", "cols"), [(0, 80), (24, 0), (65_536, 80), (-1, 80)])
    def test_what_is_no_size_is_refused(self, peer: WsPeer, rows: int, cols: int) -> None:
        start(peer, "p", ["cat"], tty=True)
        with pytest.raises(RemoteError) as refusal:
            self.resize(peer, rows, cols)
        assert refusal.value.code == -32602
        assert terminate(peer, "p")

    def test_who_has_no_terminal_cannot_be_resized(self, peer: WsPeer) -> None:
        start(peer, "p", ["sleep", "100"])
        with pytest.raises(RemoteError, match="process p has no terminal"):
            self.resize(peer, 24, 80)
        assert terminate(peer, "p")
        with pytest.raises(RemoteError, match="unknown process id nobody"):
            self.resize(peer, 24, 80, "nobody")

    def test_a_terminal_that_has_ended_cannot_be_resized(self, peer: WsPeer) -> None:
        run(peer, "p", "exit 0", tty=True)
        with pytest.raises(RemoteError, match="process p has no terminal"):
            self.resize(peer, 24, 80)


def test_default_signal_actions_although_the_server_ignores_some(peer: WsPeer) -> None:
    pipe_and_chld = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGCHLD - 1)
    lines = shown(peer, ["grep", "-E", "^Sig(Ign|Blk|Cgt)", "/proc/self/status"])
    for line in lines:
        assert int(line.split()[1], 16) & pipe_and_chld == 0, line
