"""The real client as harness: whole turns through a relay, at our executor in remote mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.reference.model_server import Turn, patch, say
from tests.reference.scenario import MARK, MakeClient, outputs, shell, type_in
from tests.reference.tool_output import ToolOutput, read
from tests.support.relay import Relay, RelayThread
from tests.support.remote_process import RemoteProcess
from tests.support.upgrades import upgraded
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay that goes on while the test waits for the client."""
    thread = RelayThread()
    yield thread.relay
    thread.close()


@pytest.fixture
def executor(relay: Relay) -> Iterator[RemoteProcess]:
    """Our server, registered and connected."""
    with RemoteProcess(relay.url, env={"EXECUTOR_MARK": MARK}) as process:
        process.says("waiting for a harness")
        yield process


def noise(relay: Relay) -> dict[str, str]:
    """Return the variables by which the client finds an executor behind a relay."""
    return {
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": relay.url,
        "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": "env-1",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": "of-the-harness",
        "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID": "acct-1",
    }


def test_a_whole_turn(make_client: MakeClient, relay: Relay, executor: RemoteProcess) -> None:
    added = "*** Begin Patch\n*** Add File: made\n+by the patch\n*** End Patch\n"
    script: list[Turn] = [
        [shell("echo EXECUTOR_MARK=$EXECUTOR_MARK; cat side; echo err >&2; exit 7")],
        [patch(added, "call-2")],
        [shell("cat made; head -c 3000000 /dev/zero | wc -c", "call-3")],
        [say("done")],
    ]
    client = make_client(script)
    client.extra_env = noise(relay)
    (client.workspace / "side").write_text("executor\n")
    client.run(None)
    reports = client.model.outputs()
    told = read(reports["call-1"])
    assert (told.code, told.text.replace("err\n", "")) == (7, f"EXECUTOR_MARK={MARK}\nexecutor\n")
    assert "err\n" in told.text  # two pipes have no order
    assert "Success. Updated the following files" in reports["call-2"]
    assert read(reports["call-3"]) == ToolOutput(0, None, "by the patch\n3000000\n")
    assert (client.workspace / "made").read_text() == "by the patch\n"
    (call, *_) = relay.asked("connect")
    assert call.headers["authorization"] == "Bearer of-the-harness"
    assert call.headers["chatgpt-account-id"] == "acct-1"
    executor.says("a harness left")


def test_a_command_with_a_terminal_takes_input(
    make_client: MakeClient, relay: Relay, executor: RemoteProcess
) -> None:
    script: list[Turn] = [
        [shell("read line; echo got $line; read line; echo and $line", tty=True, wait_ms=1_500)],
        type_in("one\n", "call-2", wait_ms=1_500),
        type_in("two\n", "call-3", after="call-2"),
        [say("done")],
    ]
    client = make_client(script)
    client.extra_env = noise(relay)
    client.run(None)
    reports = outputs(client)
    assert "got one" in reports["call-2"].text
    assert "and two" in reports["call-3"].text


def test_a_lost_websocket_is_survived(make_client: MakeClient, relay: Relay, executor: RemoteProcess) -> None:
    def cut(model: object) -> list[dict[str, object]]:
        relay_cut(relay)
        return [shell("echo after the cut", "call-2")]

    client = make_client([[shell("echo before")], cut, [say("done")]])
    client.extra_env = noise(relay)
    client.run(None)
    reports = outputs(client)
    assert reports["call-1"].text == "before\n"
    assert reports["call-2"].text == "after the cut\n"
    assert len(relay.executors) >= 1


def relay_cut(relay: Relay) -> None:
    """Have the relay end the client's websocket; from another thread only its loop may do so."""
    relay.soon(relay.harnesses[-1].drop)


def test_an_upgrade_is_survived_also_by_a_command_that_runs(
    make_client: MakeClient, relay: Relay, executor: RemoteProcess
) -> None:
    """The server becomes another program; the client resumes its session by a new stream."""

    def upgrade(model: object) -> list[dict[str, object]]:
        before = len(relay.harnesses)
        upgraded(executor)
        # What the client sends before it knows that its stream is lost, it calls failed.
        wait_until(lambda: len(relay.harnesses) > before, 20)
        return [shell("echo behind the upgrade", "call-2")]

    def upgrade_while_it_runs() -> None:
        wait_until((client.workspace / "begun").exists, 60)
        upgraded(executor)
        (client.workspace / "go").touch()

    running = "echo before; touch begun; until [ -e go ]; do sleep 0.1; done; echo behind"
    client = make_client([[shell(running, wait_ms=30_000)], upgrade, [say("done")]])
    client.extra_env = noise(relay)
    upgrading = threading.Thread(target=upgrade_while_it_runs)
    upgrading.start()
    client.run(None)
    upgrading.join()
    reports = outputs(client)
    assert reports["call-1"].text == "before\nbehind\n"
    assert reports["call-2"].text == "behind the upgrade\n"
    assert executor.errors().count("upgraded from") == 2
    assert len(relay.asked("register")) == 1
