from __future__ import annotations

import pytest

from execserver.mcp.sandbox_state import SandboxState, read_state
from execserver.mcp.shell import encoded, folder, shell_argv, shell_environment
from execserver.mcp.tool import ExecParams
from execserver.protocol.errors import InvalidParams


def state(**policy: object) -> SandboxState:
    return read_state({"sandboxPolicy": policy, "sandboxCwd": "/work"})


def test_an_empty_path_is_no_folder() -> None:
    with pytest.raises(OSError, match="No such file or directory"):
        folder("/work", "")


@pytest.mark.parametrize(("login", "flag"), [(None, b"-lc"), (True, b"-lc"), (False, b"-c")])
def test_only_an_explicit_no_gives_a_shell_that_is_no_login_shell(login: bool | None, flag: bytes) -> None:
    params = ExecParams("echo é", "/", login=login)
    assert shell_argv(b"/opt/bash", params) == [b"/opt/bash", flag, "echo é".encode()]


@pytest.mark.parametrize(
    ("policy", "variable"),
    [
        ({"type": "read-only"}, b"1"),
        ({"type": "workspace-write"}, b"1"),
        ({"type": "workspace-write", "network_access": True}, None),
        ({"type": "danger-full-access"}, None),
        ({"type": "external-sandbox"}, b"1"),
        ({"type": "external-sandbox", "network_access": "enabled"}, None),
    ],
    ids=repr,
)
def test_a_variable_tells_that_there_is_no_network(policy: dict[str, object], variable: bytes | None) -> None:
    assert shell_environment({}, state(**policy)).get(b"CODEX_SANDBOX_NETWORK_DISABLED") == variable


@pytest.mark.parametrize(
    ("inherited", "level"), [({}, b"1"), ({b"SHLVL": b"0"}, b"1"), ({b"SHLVL": b"3"}, b"3")]
)
def test_no_shell_under_the_filter_is_the_outermost(inherited: dict[bytes, bytes], level: bytes) -> None:
    assert shell_environment(inherited, state(type="read-only"))[b"SHLVL"] == level
    assert shell_environment(inherited, state(type="danger-full-access")) == inherited


def test_the_servers_environment_comes_along_without_its_credentials() -> None:
    inherited = {
        b"PATH": b"/bin",
        b"ODD\xff": b"\xfe",
        b"CODEX_API_KEY": b"secret",
        b"CODEX_ACCESS_TOKEN": b"secret",
        b"MY_TOKEN": b"the user's own",
    }
    env = shell_environment(inherited, state(type="danger-full-access"))
    assert env == {b"PATH": b"/bin", b"ODD\xff": b"\xfe", b"MY_TOKEN": b"the user's own"}


def test_the_wrapper_of_another_server_is_not_handed_on() -> None:
    inherited = {b"CODEX_ESCALATE_SOCKET": b"7", b"BASH_EXEC_WRAPPER": b"/w", b"EXEC_WRAPPER": b"/w"}
    assert shell_environment(inherited, state(type="danger-full-access")) == {}


def test_a_relative_folder_begins_at_the_servers() -> None:
    assert folder("/srv", "a/b") == b"/srv/a/b"
    assert folder("/srv", "/a") == b"/a"


def test_any_text_a_client_can_send_has_bytes() -> None:
    assert encoded("\ud800") == b"\xed\xa0\x80"


@pytest.mark.parametrize("cwd", ["/srv", "/srv/", "//srv/.", "/other/../srv", "srv"])
def test_the_sandboxs_folder_has_one_name(cwd: str) -> None:
    found = read_state({"sandboxPolicy": {"type": "workspace-write"}, "sandboxCwd": cwd}).context("/").cwd
    assert found is not None
    assert found.native() == b"/srv"


def test_a_read_only_policy_never_has_the_network() -> None:
    assert not state(type="read-only", network_access=True).network


@pytest.mark.parametrize(
    "params",
    [
        {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/a\0b"},
        {"sandboxPolicy": {"type": "workspace-write", "writable_roots": ["/a\0b"]}, "sandboxCwd": "/"},
    ],
    ids=repr,
)
def test_a_folder_that_cannot_be_is_refused(params: dict[str, object]) -> None:
    with pytest.raises(InvalidParams):
        read_state(params)
