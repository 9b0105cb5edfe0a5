"""What counts as a box, and that no URL can smuggle an option into ssh's command line."""

from __future__ import annotations

import pytest

from execserver.box.address import BadBox, Relay, Server, Ssh, is_name, parse
from execserver.box.connecting import Box, cure_for
from execserver.client.errors import ConnectFailed, ExecServerError, TransportClosed


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("ws://127.0.0.1:8765", Server("ws://127.0.0.1:8765")),
        ("wss://box.example.org/x", Server("wss://box.example.org/x")),
        ("unix:/run/a b.sock", Server("unix:///run/a b.sock")),
        ("unix:///run/a.sock", Server("unix:///run/a.sock")),
        ("ssh:box", Ssh("box", None, "execserver")),
        ("ssh:me@box:2222/opt/execserver", Ssh("me@box", "2222", "/opt/execserver")),
        ("ssh://me@[::1]:22", Ssh("me@::1", "22", "execserver")),
        ("relay:https://r.example.org/base/devbox", Relay("https://r.example.org/base", "devbox")),
        ("relay:http://127.0.0.1:1/devbox/", Relay("http://127.0.0.1:1", "devbox")),
    ],
)
def test_a_url_leads_somewhere(url: str, where: object) -> None:
    assert parse(url) == where


@pytest.mark.parametrize(
    "url",
    [
        "",
        "box",
        "http://x",
        "ws://",
        "ws://h:0",
        "ws://h:99999",
        "wss://user:secret@h",
        "unix:relative",
        "unix://host/path",
        "ssh:",
        "ssh:-oProxyCommand=touch x",
        "ssh:-oProxyCommand=x",
        "ssh:me@-x",
        "ssh:box/bin/$(touch x)",
        "ssh:box/bin/a;b",
        "ssh:box\nx",
        "relay:r.example.org/x",
        "relay:https://r.example.org",
        "relay:https://r.example.org/a b",
        "ws://h:1/\x1b[31m",
        "ws://" + "h" * 5000,
    ],
)
def test_anything_else_is_refused_with_a_cure(url: str) -> None:
    with pytest.raises(BadBox) as refused:
        parse(url)
    assert refused.value.cure


def test_the_host_is_no_option_of_ssh() -> None:
    command = Ssh("me@box", "22", "execserver").command("-oBatchMode=yes")
    assert command[command.index("--") + 1 :] == ["me@box", "execserver --listen stdio"]


def test_names_are_plain() -> None:
    assert all(map(is_name, ("a", "dev-box.1", "A" * 63)))
    assert not any(map(is_name, ("", "-a", ".a", "a b", "a:b", "a/b", "ü", "A" * 64, "a\n")))


@pytest.mark.parametrize(
    ("where", "error", "cure"),
    [
        (
            Server("wss://h"),
            ConnectFailed("cannot connect to wss://h: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed"),
            "trust its certificate: `execserver box add NAME URL --ca-file FILE`, and use that name",
        ),
        (
            Ssh("me@h", "22022", "execserver"),
            TransportClosed("ssh ended with status 127"),
            "look at what ssh printed; `ssh -p 22022 me@h execserver --version` must work, or name another "
            "program: ssh:HOST/PATH",
        ),
    ],
)
def test_what_keeps_from_a_box_has_a_cure(where: Server | Ssh, error: ExecServerError, cure: str) -> None:
    assert cure_for(Box("b", where), error) == cure
