"""`shell`, `attach`, `forward` and `web` over wss://, with a certificate of one's own authority."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.boxes import Person, cut_way
from tests.box.test_shell import type_while_lost, wait_for_prompt
from tests.box.web.page import Refused, console
from tests.support.certificates import make_authority
from tests.support.server_process import ServerProcess

BOX = "dev"
SOON_S = 10.0  # a session whose client has left keeps its connections for three times as long
CURE = b"What to do: trust its certificate: `execserver box add NAME URL --ca-file FILE`, and use that name"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the authority, a certificate of it for the server, and one that signed nothing."""
    made = tmp_path_factory.mktemp("authority")
    authority = make_authority()
    (made / "ca.pem").write_bytes(authority.pem)
    (made / "both.pem").write_bytes(authority.issue("127.0.0.1"))
    (made / "other.pem").write_bytes(make_authority().pem)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server behind TLS."""
    both = str(folder / "both.pem")
    options = ("--tls-cert", both, "--tls-key", both)
    with ServerProcess(listen="wss://127.0.0.1:0", options=options) as running:
        assert running.url.startswith("wss://127.0.0.1:")
        yield running


def know(person: Person, url: str, folder: Path, authority: str = "ca.pem", name: str = BOX) -> None:
    """Give a box its name, and say which authority is trusted for it."""
    done = person.run("box", "add", name, url, "--ca-file", str(folder / authority))
    assert done.returncode == 0, done.stderr


def test_a_shell_is_typed_into_and_ends_with_its_own_status(
    person: Person, server: ServerProcess, folder: Path
) -> None:
    know(person, server.url, folder)
    with person.at_terminal("shell", BOX) as screen:
        wait_for_prompt(screen)
        assert screen.is_raw()
        screen.type(b"exit 9\r")
        assert screen.ended() == 9


def test_a_shell_survives_a_loss(person: Person, server: ServerProcess, folder: Path) -> None:
    """The new connection, too, trusts that authority alone."""
    with cut_way(server) as way:
        know(person, way.url, folder)
        with person.at_terminal("shell", BOX) as screen:
            wait_for_prompt(screen)
            type_while_lost(screen, way)
            screen.wait_for(b"still here\r\n")
            screen.type(b"exit\r")
            assert screen.ended() == 0


def test_connections_of_a_forward_end_with_it(person: Person, server: ServerProcess, folder: Path) -> None:
    """Over TLS the box cannot be told of it without waiting."""
    know(person, server.url, folder)
    with socket.create_server(("127.0.0.1", 0)) as far:
        place = f"0:127.0.0.1:{far.getsockname()[1]}"
        forward = person.start("forward", BOX, place, stdin=subprocess.DEVNULL)
        assert forward.stdout is not None
        port = int(forward.stdout.readline().split()[0].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port), SOON_S) as here:
            here.sendall(b"x")
            far.settimeout(SOON_S)
            there = far.accept()[0]
            with there:
                there.settimeout(SOON_S)
                assert there.recv(10) == b"x"
                there.sendall(b"y")
                assert here.recv(10) == b"y"
                forward.terminate()
                assert there.recv(10) == b""
        forward.communicate(timeout=SOON_S)
        assert forward.returncode == 128 + signal.SIGTERM


def test_a_connection_that_is_being_opened_ends_with_its_forward(
    person: Person, server: ServerProcess, folder: Path
) -> None:
    """The answer is on its way when the forward ends."""
    with cut_way(server) as way, socket.create_server(("127.0.0.1", 0)) as far:
        know(person, way.url, folder)
        place = f"0:127.0.0.1:{far.getsockname()[1]}"
        forward = person.start("forward", BOX, place, stdin=subprocess.DEVNULL)
        assert forward.stdout is not None
        port = int(forward.stdout.readline().split()[0].rpartition(b":")[2])
        way.answers.clear()
        with socket.create_connection(("127.0.0.1", port), SOON_S):
            far.settimeout(SOON_S)
            with far.accept()[0] as there:
                forward.terminate()
                there.settimeout(SOON_S)
                assert there.recv(10) == b""
        forward.communicate(timeout=SOON_S)
        assert forward.returncode == 128 + signal.SIGTERM


def test_a_shell_is_left_and_attached_to_again(person: Person, server: ServerProcess, folder: Path) -> None:
    know(person, server.url, folder)
    with person.at_terminal("shell", "--name", "mine", BOX) as screen:
        wait_for_prompt(screen)
        screen.type(b"X=kept\r~d")
        screen.wait_for(b"come back with: execserver attach ")
        assert screen.ended() == 0
    with person.at_terminal("attach", BOX, "mine") as screen:
        screen.wait_for(b"ready")  # what was on the screen before
        screen.type(b"\x15\recho $X si'z'ed\r")
        screen.wait_for(b"kept sized\r\n")
        with person.at_terminal("attach", BOX, "mine") as reader:
            reader.wait_for(b"somebody else writes to it")
            screen.type(b"exit 6\r")
            assert reader.ended() == 6
        assert screen.ended() == 6


def test_the_console_shows_a_terminal_and_files_and_resumes_a_lost_connection(
    person: Person, server: ServerProcess, folder: Path, tmp_path: Path
) -> None:
    with cut_way(server) as way:
        know(person, way.url, folder)
        with console(person, BOX) as web, web.page() as page:
            process_id = page.ask("process.start", box=BOX, argv=["cat"], tty=True)["process_id"]
            found = page.ask("terminal.open", box=BOX, process_id=process_id, cols=80, rows=24)
            channel = found["channel"]
            page.type(channel, b"before\r")
            page.shown(channel, b"before\r\nbefore")
            (dev,) = [each for each in page.ask("boxes.list") if each["name"] == BOX]
            assert (dev["state"], dev["url"]) == ("connected", way.url)
            way.cut()
            assert page.event("connection", state="lost")["box"] == BOX
            page.event("connection", state="connected")
            page.type(channel, b"after\r")
            page.shown(channel, b"after\r\nafter")
            path = bytes(tmp_path / "up")
            assert web.file(BOX, path, "PUT", b"content" * 100_000).status == 201
            assert web.file(BOX, path).body == b"content" * 100_000
            page.ask("process.signal", box=BOX, process_id=process_id, signal="KILL")
            page.event("terminal.exited", channel=channel)


@pytest.mark.parametrize("authority", ["other.pem", None])
def test_without_that_authority_nothing_is_begun_and_the_cure_is_told(
    person: Person, server: ServerProcess, folder: Path, authority: str | None
) -> None:
    box = server.url
    if authority is not None:
        know(person, box, folder, authority)
        box = BOX
    for words in (["shell", box], ["attach", box, "mine"]):
        with person.at_terminal(*words) as screen:
            screen.wait_for(CURE)
            assert screen.ended() == 255
            assert not screen.is_raw()
    done = person.run("web", box, "--no-open")
    assert (done.returncode, done.stdout) == (255, b"")
    assert CURE in done.stderr


def test_the_console_tells_of_a_box_that_is_not_trusted_and_serves_the_others(
    person: Person, server: ServerProcess, folder: Path
) -> None:
    know(person, server.url, folder)
    know(person, server.url, folder, "other.pem", "wrong")
    with console(person) as web, web.page() as page:
        with pytest.raises(Refused, match="certificate"):
            page.ask("files.list", box="wrong")
        assert page.ask("files.list", box=BOX)["path"]


def test_a_certificate_of_another_name_is_not_taken(person: Person, folder: Path, tmp_path: Path) -> None:
    authority = make_authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    both = tmp_path / "both.pem"
    both.write_bytes(authority.issue("127.0.0.2"))
    options = ("--tls-cert", str(both), "--tls-key", str(both))
    with ServerProcess(listen="wss://127.0.0.1:0", options=options) as server:
        know(person, server.url, tmp_path)
        with person.at_terminal("shell", BOX) as screen:
            screen.wait_for(b"certificate")
            assert screen.ended() == 255
