"""Which server a BOX leads the asyncio client to, and with which token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from execserver.box.address import Own, Relay, Server, Ssh
from execserver.client.errors import ConnectFailed, InvalidBox, InvalidUrl, UnsupportedByServer
from execserver_client._routes import find, route_to
from execserver_client.options import ConnectOptions
from tests.sdk.support import run_async

BOXES = """
[boxes.dev]
url = "wss://devbox.example:1"
token = "of-the-file"
ca-file = "/ca.pem"

[boxes.far]
url = "relay:https://relay.example/env"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a boxes file and a program."""
    file = tmp_path / "boxes.toml"
    file.write_text(BOXES)
    file.chmod(0o600)
    program = tmp_path / "execserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"EXECSERVER_BOXES": str(file), "PATH": str(tmp_path)}


def test_a_name_is_looked_up_in_the_boxes_file(environ: dict[str, str]) -> None:
    found = find("dev", None, None, environ)
    assert found.where == Server("wss://devbox.example:1")
    assert (found.token, found.token_file, found.ca_file) == ("of-the-file", None, "/ca.pem")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("ws://127.0.0.1:1", Server("ws://127.0.0.1:1")),
        ("unix:/run/s", Server("unix:///run/s")),
        ("ssh:ada@host:22/opt/execserver", Ssh("ada@host", "22", "/opt/execserver")),
        ("relay:https://relay.example/env", Relay("https://relay.example", "env")),
    ],
)
def test_a_url_says_itself_where_it_leads(environ: dict[str, str], text: str, where: object) -> None:
    assert find(text, "t", None, environ).where == where
    assert find(None, "t", None, {**environ, "EXECSERVER_BOX": text}).where == where


def test_without_a_box_a_private_server_is_started(environ: dict[str, str], tmp_path: Path) -> None:
    own = find(None, None, None, environ)
    assert own.where == Own((str(tmp_path / "execserver"), "--listen", "stdio"))
    assert find(None, None, None, {**environ, "EXECSERVER_PROGRAM": "/p"}).where == Own(
        ("/p", "--listen", "stdio")
    )
    route = route_to(own, ConnectOptions())
    assert not route.can_resume
    assert route.home is not None
    assert route.home.native() == os.fsencode(os.getcwd())


def test_the_tokens_of_caller_file_and_environment_count_in_this_order(environ: Mapping[str, str]) -> None:
    with_token = {**environ, "EXECSERVER_TOKEN": "of-the-environment"}
    url = "wss://other.example"
    assert find(url, None, None, with_token).token == "of-the-environment"
    assert find("dev", None, None, with_token).token == "of-the-file"
    assert find("dev", "mine", None, with_token).token == "mine"
    mine = find("dev", None, "/file", with_token)
    assert (mine.token, mine.token_file) == (None, "/file")


@pytest.mark.parametrize(
    ("text", "told", "cure"),
    [
        ("nobody", "there is no box 'nobody'", "execserver box add nobody URL"),
        ("http://x", "leads to no box", "a box is ws://HOST:PORT"),
        ("ssh:-oProxyCommand=x", "names no host", r"write ssh:\[USER@\]HOST"),
        ("far", "a relay asks for a token", "token="),
        ("ws://user:secret@host", "must hold no password", "--token-file"),
        (None, "no program execserver on PATH", "install execserver"),
        ("", "the box is empty", "name a box"),
    ],
)
def test_what_is_no_box_is_told_with_the_cure(
    environ: dict[str, str], text: str | None, told: str, cure: str
) -> None:
    with pytest.raises(InvalidBox, match=told) as refused:
        find(text, None, None, {**environ, "PATH": "/nowhere"})
    assert refused.match(told)
    assert cure.replace("\\", "") in refused.value.hint
    assert "secret" not in str(refused.value)


def test_a_boxes_file_that_others_may_write_is_refused(environ: dict[str, str]) -> None:
    os.chmod(environ["EXECSERVER_BOXES"], 0o666)
    with pytest.raises(InvalidBox, match="others may write to"):
        find("dev", None, None, environ)


@pytest.mark.parametrize("url", ["ws://192.0.2.1:1", "ws://devbox.example"])
def test_a_token_is_not_sent_in_clear_to_another_machine(environ: dict[str, str], url: str) -> None:
    async def main() -> None:
        route = route_to(find(url, "secret", None, environ), ConnectOptions())
        with pytest.raises(InvalidUrl, match="others could read it"):
            await route.open_transport(5)

    run_async(main())


def test_ssh_is_asked_not_to_ask(environ: dict[str, str], tmp_path: Path) -> None:
    said = tmp_path / "said"
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\nexec cat\n')
    ssh.chmod(0o755)

    async def main() -> None:
        route = route_to(find("ssh:ada@host:2200", None, None, environ), ConnectOptions(connect_timeout=7))
        assert not route.can_resume
        transport = await route.open_transport(5)
        await transport.send(b"{}")
        assert await transport.receive() == b"{}"
        await transport.close()

    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}:{path}"
    try:
        run_async(main())
    finally:
        os.environ["PATH"] = path
    words = said.read_text().splitlines()
    assert words[-2:] == ["ada@host", "execserver --listen stdio"]
    assert {"-oBatchMode=yes", "-oConnectTimeout=7", "2200", "--"} <= set(words)


def test_a_program_that_is_not_there_is_told(environ: dict[str, str]) -> None:
    async def main() -> None:
        own = find(None, None, None, {**environ, "EXECSERVER_PROGRAM": "/nowhere/execserver"})
        with pytest.raises(ConnectFailed, match="cannot start /nowhere/execserver"):
            await route_to(own, ConnectOptions()).open_transport(5)

    run_async(main())


@pytest.mark.parametrize("box", [None, "ssh:host"])
@pytest.mark.parametrize(
    "wish", [{"keep_ms": 1}, {"session_name": "n"}, {"resume_session_id": "i"}, {"resume_session_name": "n"}]
)
def test_no_session_is_kept_by_a_server_that_ends_with_its_client(
    environ: dict[str, str], box: str | None, wish: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedByServer, match="ends with it") as refused:
        route_to(find(box, None, None, environ), ConnectOptions().replace(**wish))
    assert "execserver --listen" in refused.value.hint
