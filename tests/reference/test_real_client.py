"""The real client at work on our server, and on the reference server to check the scenarios themselves.

What counts is what the model gets to read: the outputs of the client's tools, word for word.
"""

from __future__ import annotations

import base64
import os
import re
import time
from pathlib import Path

import pytest

from tests.reference.model_server import Turn, call, patch, say
from tests.reference.scenario import MARK, MakeClient, outputs, run_one, shell, type_in
from tests.reference.tool_output import ToolOutput
from tests.support.server_process import ServerProcess

PIXELS = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR4nGNQaPgPQQxwFgBcHgm7QYRGfgAAAABJRU5ErkJggg=="
)

pytestmark = pytest.mark.timeout(300)


def test_a_command_runs_in_the_workspace_and_its_output_comes_back(
    make_client: MakeClient, server: ServerProcess
) -> None:
    script = "echo EXECUTOR_MARK=$EXECUTOR_MARK; cat side; pwd; sleep 0.1; echo err >&2; cat side > made"
    client = make_client([[shell(script)], [say("done")]])
    (client.workspace / "side").write_text("executor\n")
    client.run(server.url)
    text = f"EXECUTOR_MARK={MARK}\nexecutor\n{client.workspace}\nerr\n"
    assert outputs(client) == {"call-1": ToolOutput(0, None, text)}
    assert (client.workspace / "made").read_text() == "executor\n"


def test_exit_codes_are_reported(make_client: MakeClient, server: ServerProcess) -> None:
    commands = ["true", "exit 7", "exit 255", "kill -KILL $$", "/no/such/program"]
    script: list[Turn] = [[shell(command, f"call-{n}")] for n, command in enumerate(commands)]
    client = make_client([*script, [say("done")]])
    client.run(server.url)
    codes = [output.code for output in outputs(client).values()]
    assert codes == [0, 7, 255, 137, 127]
    assert "/no/such/program" in outputs(client)["call-4"].text


def test_the_environment_policy_is_applied_on_the_executor(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client([[shell("env | sort | cut -d= -f1")], [shell("echo $POLICY_VAR", "call-2")]])
    client.extra_config = (
        '[shell_environment_policy]\ninherit = "core"\nset = { POLICY_VAR = "from-policy" }\n'
    )
    client.run(server.url)
    names = set(outputs(client)["call-1"].text.split())
    assert {"PATH", "HOME", "POLICY_VAR", "TERM", "NO_COLOR", "CODEX_THREAD_ID"} <= names
    assert not {"EXECUTOR_MARK", "EXECSERVER_SETTINGS", "PYTHONPATH", "FAKE_KEY"} & names
    assert outputs(client)["call-2"].text == "from-policy\n"


def test_a_long_output_arrives_with_its_beginning_and_end(
    make_client: MakeClient, server: ServerProcess
) -> None:
    output = run_one(
        make_client, server, shell("echo START; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo END")
    )
    assert output.code == 0
    assert re.fullmatch(r"(?s).*START\nxxx.*xxx\nEND\n", output.text), output.text[:200]


def test_many_lines_arrive_in_order(make_client: MakeClient, server: ServerProcess) -> None:
    output = run_one(make_client, server, shell("seq 1 5000", max_output_tokens=100_000))
    numbers = [int(line) for line in output.text.split() if line.isdigit()]
    assert output.code == 0
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1, 5000)


def test_binary_output_is_shown_as_text(make_client: MakeClient, server: ServerProcess) -> None:
    output = run_one(make_client, server, shell("printf '\\377\\376 \\303\\274 ok\\n'"))
    assert output == ToolOutput(0, None, "\ufffd\ufffd \u00fc ok\n")


def test_a_terminal_session_is_written_to(make_client: MakeClient, server: ServerProcess) -> None:
    loop = 'stty -echo; echo ready; while read -r l; do echo got:$l; [ "$l" = bye ] && exit 6; done'
    client = make_client(
        [
            [shell(loop, tty=True, wait_ms=1_500)],
            type_in("hello\n", "call-2", wait_ms=1_500),
            type_in("bye\n", "call-3"),
        ]
    )
    client.run(server.url)
    found = outputs(client)
    assert found["call-1"].text == "ready\r\n"
    assert found["call-2"].text == "got:hello\r\n"
    assert found["call-3"] == ToolOutput(6, None, "got:bye\r\n")


def test_a_terminal_is_a_terminal(make_client: MakeClient, server: ServerProcess) -> None:
    output = run_one(make_client, server, shell("test -t 0 && test -t 1 && stty size && tty", tty=True))
    assert output.code == 0
    assert re.fullmatch(r"24 80\r\n/dev/pts/\d+\r\n", output.text)


def test_ctrl_c_interrupts_a_command_without_terminal(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client(
        [[shell("echo begun; sleep 60", wait_ms=1_500)], type_in("\x03", "call-2", wait_ms=20_000)]
    )
    client.run(server.url)
    found = outputs(client)
    assert (found["call-1"].text, found["call-1"].code) == ("begun\n", None)
    assert found["call-2"].code == 130


def test_ctrl_c_interrupts_a_command_on_a_terminal(make_client: MakeClient, server: ServerProcess) -> None:
    trap = "trap 'echo caught; exit 9' INT; echo begun; while :; do sleep 0.1; done"
    client = make_client([[shell(trap, tty=True, wait_ms=1_500)], type_in("\x03", "call-2", wait_ms=20_000)])
    client.run(server.url)
    assert outputs(client)["call-2"] == ToolOutput(9, None, "^Ccaught\r\n")


def test_a_background_child_does_not_hold_the_exit_back(
    make_client: MakeClient, server: ServerProcess
) -> None:
    output = run_one(make_client, server, shell("(sleep 3; echo late) & echo early; exit 4"))
    assert output.code == 4
    assert output.text.startswith("early\n")


def test_a_running_command_is_polled(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client(
        [[shell("echo one; sleep 3; echo two; exit 3", wait_ms=1_000)], type_in("", "call-2", wait_ms=20_000)]
    )
    client.run(server.url)
    found = outputs(client)
    assert (found["call-1"].code, found["call-1"].text) == (None, "one\n")
    assert found["call-2"] == ToolOutput(3, None, "two\n")


def test_a_patch_adds_updates_deletes_and_moves(make_client: MakeClient, server: ServerProcess) -> None:
    text = (
        "*** Begin Patch\n"
        "*** Add File: new dir/hello \u00fc.txt\n+line one\n+line two\n"
        "*** Update File: old.txt\n@@\n alpha\n-beta\n+BETA\n gamma\n"
        "*** Delete File: gone.txt\n"
        "*** Update File: mv.txt\n*** Move to: sub/moved.txt\n@@\n keep\n-change\n+changed\n"
        "*** End Patch"
    )
    client = make_client([[patch(text)], [say("done")]])
    for name, content in {
        "old.txt": "alpha\nbeta\ngamma\n",
        "gone.txt": "x\n",
        "mv.txt": "keep\nchange\n",
    }.items():
        (client.workspace / name).write_text(content)
    client.run(server.url)
    files = {
        str(path.relative_to(client.workspace)): path.read_text()
        for path in client.workspace.rglob("*")
        if path.is_file()
    }
    assert files == {
        "new dir/hello \u00fc.txt": "line one\nline two\n",
        "old.txt": "alpha\nBETA\ngamma\n",
        "sub/moved.txt": "keep\nchanged\n",
    }
    assert "Success. Updated the following files" in str(client.model.outputs()["call-1"])


def test_a_patch_that_does_not_fit_is_refused(make_client: MakeClient, server: ServerProcess) -> None:
    text = "*** Begin Patch\n*** Update File: missing.txt\n@@\n-a\n+b\n*** End Patch"
    client = make_client([[patch(text)], [say("done")]])
    client.run(server.url)
    assert "No such file or directory (os error 2)" in str(client.model.outputs()["call-1"])


def test_an_image_is_shown(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([[call("view_image", {"path": "pic.png"})], [say("done")]])
    (client.workspace / "pic.png").write_bytes(PIXELS)
    client.run(server.url)
    assert "data:image/png;base64," in str(client.model.outputs()["call-1"])


def test_project_instructions_are_read_from_the_executor(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client([[say("done")]])
    (client.workspace / ".git").mkdir()
    (client.workspace / "AGENTS.md").write_text("a-token-in-the-project-file\n")
    client.run(server.url)
    assert "a-token-in-the-project-file" in client.model.instructions()


def test_a_command_left_running_ends_with_the_client(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([[shell("echo $$; sleep 300 & echo $!; wait", wait_ms=1_500)], [say("done")]])
    client.run(server.url)
    pids = [int(word) for word in outputs(client)["call-1"].text.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process of the ended client lives on"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_commands_of_one_turn_run_one_after_another(make_client: MakeClient, server: ServerProcess) -> None:
    script: list[Turn] = [[shell(f"echo {n}", f"call-{n}") for n in range(8)], [say("done")]]
    client = make_client(script)
    client.run(server.url)
    assert [output.text for output in outputs(client).values()] == [f"{n}\n" for n in range(8)]


def test_the_work_stays_on_the_executor(make_client: MakeClient, server: ServerProcess) -> None:
    output = run_one(make_client, server, shell(f"ps -o ppid= -p $$; echo {os.getpid()}"))
    parent = int(output.text.split()[0])
    assert parent in descendants(server.pid)


def descendants(pid: int) -> set[int]:
    """Return a process and everything below it."""
    found = {pid}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found |= descendants(int(child))
    return found
