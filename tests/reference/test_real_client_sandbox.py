"""The real client's sandboxed work on our server, and on the reference server to check the scenarios.

What counts is what the model gets to read, what is on the disk afterwards, and whether the server told the
client of a denial, which the model's text alone does not show.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.codex_cli import Client
from tests.reference.model_server import Item, Turn, patch, say
from tests.reference.scenario import MakeClient, outputs, shell, type_in
from tests.reference.tool_output import ToolOutput
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import Flavour, ServerProcess, base_environment

READ_ONLY = "Read-only file system"
PATCH_REFUSED = "patch rejected: writing outside of the project; rejected by user approval settings"

pytestmark = pytest.mark.timeout(300)


def bubblewrap_without_argv0() -> bool:
    """Tell whether the system's bubblewrap lacks the option that the reference server cannot do without."""
    program = shutil.which("bwrap")
    if program is None:
        return False
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=False)
    return "--argv0" not in done.stdout + done.stderr


@pytest.fixture
def server(flavour: Flavour, tmp_path: Path) -> Iterator[ServerProcess]:
    """A fresh server, with an empty home: in a sandbox bash reads the start-up file there."""
    if flavour.is_reference and bubblewrap_without_argv0():
        pytest.skip("the system's bubblewrap has no --argv0, with which the reference server starts it")
    with ServerProcess(flavour, env=base_environment() | {"HOME": str(tmp_path)}) as running:
        yield running


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket on the loopback of the host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        yield listening


def outside_of(client: Client) -> Path:
    """Make a folder that no preset lets be written: neither in the workspace nor among temporary files."""
    folder = client.home / "outside"
    folder.mkdir()
    return folder


def add_file(path: Path | str, call_id: str) -> Item:
    """Add a file of one line with the client's patch tool."""
    return patch(f"*** Begin Patch\n*** Add File: {path}\n+patched\n*** End Patch\n", call_id)


def connect_to(listening: socket.socket, call_id: str) -> Item:
    """Connect to the listener with the client's shell tool."""
    code = f"import socket; socket.create_connection({listening.getsockname()!r}, 5); print('connected')"
    return shell(f'{sys.executable} -c "{code}"', call_id)


def run_and_count_denials(client: Client, server: ServerProcess, sandbox: str) -> int:
    """Run one turn; return how often the client was told that a process was denied something."""
    proxy = CuttingProxy(server.url)
    try:
        client.run(proxy.url, sandbox=sandbox)
    finally:
        proxy.stop()
    return proxy.from_server.count(b'"sandboxDenied":true')


def test_a_command_writes_inside_the_workspace(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([[shell("mkdir sub && echo made > sub/file && cat sub/file")], [say("done")]])
    denials = run_and_count_denials(client, server, "workspace-write")
    assert outputs(client) == {"call-1": ToolOutput(0, None, "made\n")}
    assert (client.workspace / "sub/file").read_text() == "made\n"
    assert denials == 0


def test_a_write_outside_the_workspace_is_denied(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([])
    outside = outside_of(client)
    client.model.script.extend([[shell(f"echo out > {outside}/file; exit $?")], [say("done")]])
    denials = run_and_count_denials(client, server, "workspace-write")
    output = outputs(client)["call-1"]
    assert (output.code, output.text.count(READ_ONLY)) == (1, 1)
    assert list(outside.iterdir()) == []
    assert denials > 0


def test_in_a_read_only_sandbox_files_are_read_and_no_file_is_written(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client(
        [[shell("cat side")], [shell("echo no > made", "call-2")], [add_file("patched", "call-3")]]
    )
    (client.workspace / "side").write_text("readable\n")
    denials = run_and_count_denials(client, server, "read-only")
    reports = client.model.outputs()
    assert "Process exited with code 0\n" in reports["call-1"]
    assert reports["call-1"].endswith("Output:\nreadable\n")
    assert "Process exited with code 1\n" in reports["call-2"]
    assert READ_ONLY in reports["call-2"]
    assert reports["call-3"].startswith("patch rejected: writing is blocked by read-only sandbox")
    assert [path.name for path in client.workspace.iterdir()] == ["side"]
    assert denials > 0


def test_a_plain_failure_is_no_denial(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([[shell("echo so; exit 3")], [say("done")]])
    denials = run_and_count_denials(client, server, "read-only")
    assert outputs(client)["call-1"] == ToolOutput(3, None, "so\n")
    assert denials == 0


def test_the_network_is_off(make_client: MakeClient, server: ServerProcess, listener: socket.socket) -> None:
    client = make_client([[connect_to(listener, "call-1")], [say("done")]])
    client.run(server.url, sandbox="workspace-write")
    output = outputs(client)["call-1"]
    assert output.code == 1
    assert "Operation not permitted" in output.text
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_the_network_is_on_where_the_client_allows_it(
    make_client: MakeClient, server: ServerProcess, listener: socket.socket
) -> None:
    client = make_client([[connect_to(listener, "call-1")], [say("done")]])
    client.extra_config = "[sandbox_workspace_write]\nnetwork_access = true\n"
    client.run(server.url, sandbox="workspace-write")
    assert outputs(client)["call-1"] == ToolOutput(0, None, "connected\n")
    listener.accept()[0].close()


def test_a_patch_inside_the_workspace_is_applied(make_client: MakeClient, server: ServerProcess) -> None:
    change = "*** Update File: old\n@@\n-before\n+after\n*** Delete File: gone\n"
    client = make_client(
        [[add_file("new/file", "call-1")], [patch(f"*** Begin Patch\n{change}*** End Patch\n", "call-2")]]
    )
    (client.workspace / "old").write_text("before\n")
    (client.workspace / "gone").write_text("any\n")
    client.run(server.url, sandbox="workspace-write")
    reports = client.model.outputs()
    assert reports["call-1"].endswith("Success. Updated the following files:\nA new/file\n")
    assert reports["call-2"].endswith("Success. Updated the following files:\nM old\nD gone\n")
    assert (client.workspace / "new/file").read_text() == "patched\n"
    assert (client.workspace / "old").read_text() == "after\n"
    assert not (client.workspace / "gone").exists()


def test_a_patch_outside_the_workspace_is_refused(make_client: MakeClient, server: ServerProcess) -> None:
    """By the client when it sees the place; behind a link only the server can."""
    client = make_client([])
    outside = outside_of(client)
    (outside / "victim").write_text("intact\n")
    (client.workspace / "link").symlink_to(outside)
    change = "*** Update File: link/victim\n@@\n-intact\n+changed\n"
    client.model.script.extend(
        [
            [add_file(outside / "file", "call-1")],
            [add_file("link/file", "call-2")],
            [patch(f"*** Begin Patch\n{change}*** End Patch\n", "call-3")],
        ]
    )
    client.run(server.url, sandbox="workspace-write")
    reports = client.model.outputs()
    assert reports["call-1"] == PATCH_REFUSED
    assert reports["call-2"].endswith(f"Failed to write file {client.workspace}/link/file\n")
    assert reports["call-3"].endswith(f"Failed to write file {client.workspace}/link/victim\n")
    assert [path.name for path in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "intact\n"


def test_a_folder_that_the_client_adds_is_written_by_commands_and_patches(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client([])
    outside = outside_of(client)
    client.extra_config = f'[sandbox_workspace_write]\nwritable_roots = ["{outside}"]\n'
    client.model.script.extend(
        [[shell(f"echo made > {outside}/made")], [add_file(outside / "patched", "call-2")]]
    )
    client.run(server.url, sandbox="workspace-write")
    assert "Process exited with code 0\n" in client.model.outputs()["call-1"]
    assert (outside / "made").read_text() == "made\n"
    assert (outside / "patched").read_text() == "patched\n"


def test_a_sandboxed_terminal_is_written_to(make_client: MakeClient, server: ServerProcess) -> None:
    loop = "stty -echo; test -t 0 && echo ready; read -r l; echo got:$l; echo $l > typed; exit 8"
    client = make_client([[shell(loop, tty=True, wait_ms=1_500)], type_in("word\n", "call-2"), [say("done")]])
    denials = run_and_count_denials(client, server, "workspace-write")
    found = outputs(client)
    assert found["call-1"].text == "ready\r\n"
    assert found["call-2"] == ToolOutput(8, None, "got:word\r\n")
    assert (client.workspace / "typed").read_text() == "word\n"
    assert denials == 0


def test_a_terminal_is_denied_what_its_sandbox_forbids(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client([[shell("read -r l; echo $l > typed", tty=True, wait_ms=1_500)]])
    client.model.script.append(type_in("word\n", "call-2"))
    denials = run_and_count_denials(client, server, "read-only")
    output = outputs(client)["call-2"]
    assert (output.code, output.text.count(READ_ONLY)) == (1, 1)
    assert denials > 0
    assert list(client.workspace.iterdir()) == []


def test_the_repository_of_the_workspace_is_read_and_not_written(
    make_client: MakeClient, server: ServerProcess
) -> None:
    commands = [
        "cat .git/HEAD",
        "echo evil >> .git/config",
        "mv .git moved",
        "echo x > .git/hooks/post-commit",
    ]
    script: list[Turn] = [[shell(command, f"call-{n}")] for n, command in enumerate(commands)]
    client = make_client([*script, [add_file(".git/hooks/pre-commit", "patch")], [say("done")]])
    hooks = client.workspace / ".git/hooks"
    hooks.mkdir(parents=True)
    (client.workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (client.workspace / ".git/config").write_text("[core]\n")
    client.run(server.url, sandbox="workspace-write")
    reports = client.model.outputs()
    assert reports["call-0"].endswith("Output:\nref: refs/heads/main\n")
    failed = ["Process exited with code 1\n" in reports[f"call-{n}"] for n in (1, 2, 3)]
    assert failed == [True, True, True]
    assert reports["patch"] == PATCH_REFUSED
    assert (client.workspace / ".git/config").read_text() == "[core]\n"
    assert list(hooks.iterdir()) == []


def test_a_missing_repository_cannot_be_made_and_nothing_stands_in_for_it_afterwards(
    make_client: MakeClient, server: ServerProcess
) -> None:
    names = [".git", ".agents", ".codex"]
    script: list[Turn] = [[shell(f"mkdir {name} && echo x > {name}/file", name)] for name in names]
    client = make_client([*script, [say("done")]])
    client.run(server.url, sandbox="workspace-write")
    assert [outputs(client)[name].code for name in names] == [1, 1, 1]
    assert list(client.workspace.iterdir()) == []
