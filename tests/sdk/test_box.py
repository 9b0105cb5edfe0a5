"""A box of the asyncio client against a real server: what runs there, and that it ends with who wanted it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from execserver.client.rules.recovery import SessionState
from execserver.protocol.environment import EnvironmentStatus
from execserver_client.box import Box
from execserver_client.errors import (
    CommandFailed,
    CommandTimeout,
    InvalidPath,
    InvalidRequestError,
    MethodNotFoundError,
    OutputTooLarge,
    RequestFailed,
    StdinUnavailable,
    TransportClosed,
    UnsupportedByServer,
)
from execserver_client.events import EMPTY_ENVIRONMENT, EndCause, ResourceLimits
from execserver_client.process import Process
from execserver_client.sandbox import Sandbox
from tests.sdk.boxes import QUICK, box_of, fake_box, nothing_runs, running, until, with_box
from tests.sdk.fake_server import FakeServer
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess


class TestRunning:
    def test_output_comes_by_stream_with_the_exit_code(self, url: str) -> None:
        async def use(box: Box) -> None:
            found = await box.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
            assert (found.exit_code, found.stdout, found.stderr, found.ok) == (3, b"out\n", b"err\n", False)
            assert (await box.run(["printf", r"\377x"])).text == "\ufffdx"

        with_box(url, use)

    def test_limits_are_asked_for_and_the_end_says_why(self, url: str) -> None:
        async def use(box: Box) -> None:
            found = await box.run(["sleep", "60"], limits=ResourceLimits(wall_ms=200))
            assert found.ended is not None
            assert (found.ended.cause, found.ended.limit) == (EndCause.DEADLINE, "wallMs")
            assert found.usage is not None
            async with await box.start(["true"], limits=ResourceLimits()) as process:
                await process.wait(timeout=20)
                assert process.exited is not None
                assert (process.exited.ended, process.exited.usage is None) == (None, False)
            assert (await box.run(["true"])).usage is None

        with_box(url, use)

    def test_a_command_is_recorded_or_refused(self, url: str, tmp_path: Path) -> None:
        async def refused(box: Box) -> None:
            with pytest.raises(UnsupportedByServer, match="this server records no process; its operator can"):
                await box.run(["true"], record="output")

        async def recorded(box: Box) -> None:
            await box.run(["echo", "seen"], record="output")
            with pytest.raises(ValueError, match="input"):
                await box.run(["true"], record="input")

        with_box(url, refused)
        with ServerProcess(options=("--audit", str(tmp_path / "log"))) as server:
            with_box(server.url, recorded)
        (index,) = (tmp_path / "log" / "recordings").glob("*.rec")
        assert b"seen" in index.read_bytes()

    def test_input_may_be_text_or_nothing(self, url: str) -> None:
        async def use(box: Box) -> None:
            assert (await box.run(["cat"], input="ä")).stdout == "ä".encode()
            assert (await box.run(["cat"], input=b"")).stdout == b""
            assert (await box.run(["cat"])).stdout == b""

        with_box(url, use)

    def test_folder_and_variables_are_as_asked(self, url: str, tmp_path: Path) -> None:
        async def use(box: Box) -> None:
            script = ["sh", "-c", 'pwd; echo "$A-$HOME"']
            kept = await box.run(script, cwd=tmp_path, env={"A": "1"})
            assert kept.text == f"{tmp_path}\n1-{os.environ.get('HOME', '')}\n"
            alone = {"A": "1", "PATH": os.environ["PATH"]}
            bare = await box.run(script, cwd=tmp_path, env=alone, env_policy=EMPTY_ENVIRONMENT)
            assert bare.text == f"{tmp_path}\n1-\n"
            assert (await box.run(["pwd", "-P"])).stdout.strip() == os.path.realpath(box.home.native())

        with_box(url, use)

    def test_a_line_in_place_of_words_is_a_mistake_with_its_cure(self, url: str) -> None:
        async def use(box: Box) -> None:
            with pytest.raises(TypeError, match=r'\["bash", "-lc", \'make all\'\]'):
                await box.run("make all")
            with pytest.raises(InvalidPath):
                await box.run(["true"], cwd="relative")
            assert await nothing_runs(box)

        with_box(url, use)

    def test_what_cannot_start_is_an_error_with_its_cure(self, url: str) -> None:
        async def use(box: Box) -> None:
            with pytest.raises(RequestFailed) as error:
                await box.run(["/no/such/program"])
            assert "argv[0]" in str(error.value.hint)
            assert (await box.run(["true"])).ok

        with_box(url, use)

    def test_a_checked_command_that_fails_raises_what_it_printed_escaped(self, url: str) -> None:
        async def use(box: Box) -> None:
            with pytest.raises(CommandFailed) as error:
                await box.run(["sh", "-c", r"printf 'a\033[2J\n' >&2; exit 4"], check=True)
            assert error.value.result.stderr == b"a\x1b[2J\n"
            assert str(error.value) == r"'sh' ended with 4; the end of its stderr: 'a\x1b[2J'"

        with_box(url, use)

    def test_one_that_takes_too_long_is_killed_and_what_it_printed_is_there(self, url: str) -> None:
        async def use(box: Box) -> None:
            with pytest.raises(CommandTimeout) as error:
                await box.run(["sh", "-c", "echo part; exec sleep 60"], timeout=3.0)
            assert (error.value.result.stdout, error.value.result.exit_code) == (b"part\n", -1)
            await until(lambda: nothing_runs(box))
            with pytest.raises(CommandTimeout):
                await box.run(["sleep", "60"], timeout=0)
            await until(lambda: nothing_runs(box))

        with_box(url, use)

    def test_one_that_prints_too_much_is_killed(self, url: str) -> None:
        async def use(box: Box) -> None:
            with pytest.raises(OutputTooLarge) as error:
                await box.run(["yes"], max_output=100_000)
            assert "max_output" in str(error.value.hint)
            await until(lambda: nothing_runs(box))
            assert (await box.run(["true"])).ok

        with_box(url, use)

    def test_many_at_once(self, url: str) -> None:
        _run_many(url, 100)

    @pytest.mark.long
    def test_a_thousand_at_once(self, url: str) -> None:
        _run_many(url, 1000)


def _run_many(url: str, count: int) -> None:
    """Have so many processes run at the same time on one connection, each with its own input."""

    async def use(box: Box) -> None:
        processes = await asyncio.gather(*(box.start(["cat"], pipe_stdin=True) for _ in range(count)))
        assert len(await running(box)) == count

        async def finish(number: int, process: Process) -> None:
            found = await process.communicate(b"%d" % number * 100)
            assert (found.exit_code, found.stdout) == (0, b"%d" % number * 100)

        await asyncio.gather(*(finish(number, process) for number, process in enumerate(processes)))
        assert box._router.processes == {}

    with_box(url, use)


class TestSandbox:
    # Without `tmp`: where /tmp is a workspace, a command of anybody's makes /tmp/.git for the while it runs.
    @pytest.mark.parametrize("sandbox", [Sandbox.workspace_write(tmp=False), "read-only"])
    def test_it_holds_a_command_back_and_says_so(
        self, url: str, tmp_path: Path, sandbox: str | Sandbox
    ) -> None:
        inside, outside = tmp_path / "inside", tmp_path / "outside"
        inside.mkdir()
        outside.mkdir()

        async def use(box: Box) -> None:
            report = await box.sandbox_report()
            if not any(each.back_end for each in report.policies):
                pytest.skip(f"no sandbox works here: {[each.blocker for each in report.policies]}")
            found = await box.run(["sh", "-c", "touch ../outside/x"], cwd=inside, sandbox=sandbox)
            written = await box.run(["touch", "y"], cwd=inside, sandbox=sandbox)
            assert written.ok == (sandbox != "read-only")
            assert (found.ok, found.sandbox_denied) == (False, True)
            assert list(outside.iterdir()) == []

        with_box(url, use)

    def test_what_is_hidden_cannot_be_read_inside_the_workspace(self, url: str, tmp_path: Path) -> None:
        (tmp_path / "seen").write_text("seen")
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "key").write_text("key")
        sandbox = Sandbox.workspace_write(roots=[tmp_path], hidden=[tmp_path / "secret"], tmp=False)

        async def use(box: Box) -> None:
            report = await box.sandbox_report()
            if not any(each.back_end for each in report.policies):
                pytest.skip(f"no sandbox works here: {[each.blocker for each in report.policies]}")
            found = await box.run(["sh", "-c", "cat seen secret/key"], cwd=tmp_path, sandbox=sandbox)
            assert (found.stdout, found.ok) == (b"seen", False)
            assert not (await box.run(["touch", "secret/new"], cwd=tmp_path, sandbox=sandbox)).ok

        with_box(url, use)

    def test_what_is_no_sandbox_starts_nothing(self, url: str) -> None:
        async def use(box: Box) -> None:
            wrongs: list[Any] = ["", "none", 0, {"permissions": {}}]
            for wrong in wrongs:
                with pytest.raises(ValueError, match="not a sandbox"):
                    await box.run(["true"], sandbox=wrong)
            assert await box.processes() == ()

        with_box(url, use)


class TestEnding:
    def test_leaving_the_box_kills_what_still_runs(self, url: str, tmp_path: Path) -> None:
        async def main() -> None:
            async with await box_of(url).open() as box:
                process = await box.start(["sleep", "60"])
                session = box.session_id
            assert box.state is SessionState.ENDED
            assert process.finished
            with pytest.raises(TransportClosed):
                await box.run(["true"])
            await box.aclose()
            async with await box_of(url, QUICK.replace(resume_session_id=session)).open() as again:
                await until(lambda: nothing_runs(again))  # a killed one is reaped a moment later

        run_async(main())

    def test_a_detached_session_goes_on_and_its_process_can_be_attached_to(self, url: str) -> None:
        async def main() -> None:
            first = await box_of(url).open()
            process = await first.start(["sh", "-c", "echo one; read x; echo two"], pipe_stdin=True)
            await process.next_event()
            await first.detach()
            async with await box_of(url, QUICK.replace(resume_session_id=first.session_id)).open() as box:
                with pytest.raises(InvalidRequestError):
                    await box.attach("unknown")
                again = await box.attach(process.process_id, after_seq=process.last_seq)
                assert (await again.communicate(b"\n")).stdout == b"two\n"
                assert (
                    b"".join([d async for d in (await box.attach(process.process_id)).stdout])
                    == b"one\ntwo\n"
                )

        run_async(main())

    def test_a_server_that_does_not_answer_holds_up_the_end_for_its_time_only(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake, QUICK.replace(close_timeout=0.05)) as box:
                await box.start(["sleep", "60"], process_id="p")
                del fake.answers["process/terminate"]
            assert len(fake.asked("process/terminate")) == 1
            assert fake.current.closed

        run_async(main(), 10)

    def test_a_box_whose_closing_is_cancelled_is_closed(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            async with fake_box(fake) as box:
                await box.start(["sleep", "60"], process_id="p")
                del fake.answers["process/terminate"]
                closing = asyncio.create_task(box.aclose())
                await fake.wait_for("process/terminate")
                closing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await closing
                assert (box.state, fake.current.closed) == (SessionState.ENDED, True)

        run_async(main())


class TestAsking:
    def test_what_the_box_is(self, url: str) -> None:
        async def use(box: Box) -> None:
            assert (await box.info()).shell.path.startswith("/")
            assert (await box.status()).status is EnvironmentStatus.READY
            assert box.server_info is not None
            assert box.extensions.process_close_stdin
            assert len((await box.sandbox_report()).checks) > 0

        with_box(url, use)

    def test_its_parts_are_made_once_and_reach_the_box(self, url: str, tmp_path: Path) -> None:
        async def use(box: Box) -> None:
            await box.files.write_text(tmp_path / "f", "text")
            assert (await box.run(["cat", str(tmp_path / "f")])).text == "text"
            assert (box.files is box.files, box.ports is box.ports, box.http is box.http) == (True,) * 3

        with_box(url, use)

    def test_any_method_can_be_called_with_plain_values(self, url: str) -> None:
        async def use(box: Box) -> None:
            info = await box.call("environment/info", {})
            assert isinstance(info, dict)
            with pytest.raises(MethodNotFoundError) as error:
                await box.call("no/such", {})
            assert (error.value.code, error.value.method) == (-32601, "no/such")

        with_box(url, use)

    def test_the_list_has_what_runs_and_what_has_ended(self, url: str) -> None:
        async def use(box: Box) -> None:
            await box.run(["true"])
            async with await box.start(["sleep", "60"], name="nap", process_id="mine"):
                found = {each.argv[0]: (each.process_id, each.running) for each in await box.processes()}
                assert found["sleep"] == ("mine", True)
                assert found["true"][1] is False

        with_box(url, use)

    def test_who_asks_is_told_of_a_loss_and_of_its_end(self) -> None:
        async def main() -> None:
            fake = FakeServer()
            told: list[bool] = []
            async with fake_box(fake) as box:
                box.on_connection_change(told.append)
                fake.current.drop()
                await fake.wait_for("initialized", 2)

                async def twice() -> bool:
                    return len(told) == 2

                await until(twice)
                assert (told, box.resumptions) == ([False, True], 1)
                box.on_connection_change(None)

        run_async(main())


def test_input_for_one_that_has_none_is_refused(url: str) -> None:
    async def use(box: Box) -> None:
        process = await box.start(["cat"])
        with pytest.raises(StdinUnavailable):
            await process.write(b"x")

    with_box(url, use)
