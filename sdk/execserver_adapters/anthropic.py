"""Anthropic SDK: the tools bash, read, write, edit, glob and grep of a session, on a box.

    worker = client.beta.environments.work.worker(
        environment_id=..., environment_key=..., memory_sync_interval=None,
        tools=lambda session: ExecserverToolset("dev", workdir="/home/me/project").tools,
    )
    await worker.run()

Names, inputs and answers are those of `agent_toolset_20260401`.  Each toolset has a connection and a shell of
its own, made at the first call.  The runner of a session closes them; with the runner of messages use
`async with ExecserverToolset(...) as toolset`.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from anthropic.lib.tools import BetaAsyncFunctionTool, ToolError, beta_async_tool
from anthropic.types.beta import (
    BetaManagedAgentsAgentToolset20260401BashInput,
    BetaManagedAgentsAgentToolset20260401EditInput,
    BetaManagedAgentsAgentToolset20260401GlobInput,
    BetaManagedAgentsAgentToolset20260401GrepInput,
    BetaManagedAgentsAgentToolset20260401ReadInput,
    BetaManagedAgentsAgentToolset20260401WriteInput,
)

from execserver_adapters._anthropic_files import Files, Refused
from execserver_adapters._anthropic_shell import Shell, ShellEnded
from execserver_adapters._environments import env_policy_of
from execserver_adapters._policies import checked, sandbox_of
from execserver_client import Box, ExecServerError, Process, RequestFailed, connect

__all__ = ["ExecserverToolset"]

_SHELL: Final = ("bash", "--noprofile", "--norc")
_PLAIN: Final = {"PS1": "", "PS2": "", "TERM": "dumb"}


class ExecserverToolset:
    """The six tools of one session; `tools` is for a runner on asyncio."""

    def __init__(
        self,
        box: str | None = None,
        *,
        workdir: str,
        sandbox: str | Mapping[str, Any] = "workspace-write",
        network: bool = False,
        env: Mapping[str, str] | None = None,
        inherit_env: str = "core",
        timeout: float = 120.0,
        max_output_bytes: int = 100 * 1024,
        max_file_bytes: int = 256 * 1024,
        **connecting: Any,
    ) -> None:
        """`box` and `connecting` (`token`, `token_file`, `ca_file`, `options`) are those of `connect`.

        `workdir` is a folder of the box, which must exist: the file tools stay in it, and `sandbox` confines
        bash and the file tools (`workspace-write`, `read-only`, `full-access`, or the contract's object).
        `network` opens it to the network.  `env` is set over what bash inherits of the server's environment
        (`inherit_env`: `core`, `all`, `none`).  `timeout` is in seconds, for a command that names none.
        Raises ValueError.
        """
        if not posixpath.isabs(workdir):
            raise ValueError(f"the working folder on the box must be absolute: {workdir!r}")
        self._workdir = posixpath.normpath(workdir)
        confined = sandbox_of(checked(sandbox), [self._workdir], network=network)
        self._sandbox = None if confined is None else confined.context(self._workdir)
        self._environment = {**_PLAIN, **(env or {})}, env_policy_of(inherit_env)
        self._timeout = timeout
        self._limits = max_output_bytes, max_file_bytes
        self._connect: Callable[[], Awaitable[Box]] = lambda: connect(box, **connecting)
        self._box: Box | None = None
        self._connecting = asyncio.Lock()
        self._shell = Shell(self._start_shell, max_output_bytes)
        self.tools: list[BetaAsyncFunctionTool[Any]] = _tools(self)
        self.tools[0].close = self.aclose  # the runner of a session calls it

    async def bash(self, command: str | None, restart: bool | None, timeout_ms: int | None) -> str:
        """Run a command in the shell.  Raises ToolError, also for a status that is not 0."""
        if restart:
            await self._shell.restart()
            return "bash session restarted"
        if not command:
            raise ToolError("bash: command is required")
        seconds = timeout_ms / 1000 if timeout_ms and timeout_ms > 0 else self._timeout
        try:
            said = await self._shell.run(command, seconds)
        except TimeoutError:
            raise ToolError(f"bash: timed out after {seconds:g} s; the shell starts anew") from None
        except ShellEnded as error:
            raise ToolError(str(error)) from None
        except ExecServerError as error:
            raise ToolError(f"bash: {error}") from error
        if said.status:
            raise ToolError(f"{said.text}\n[exit status {said.status}]".lstrip("\n"))
        return said.text

    async def files(self) -> Files:
        """Return the file tools, connected.  Raises ToolError where there is no connection."""
        try:
            box = await self._connected()
        except ExecServerError as error:
            raise ToolError(f"the box cannot be reached: {error}") from error
        output, file = self._limits
        return Files(box, self._workdir, sandbox=self._sandbox, most_text=file, most_output=output)

    async def aclose(self) -> None:
        """End the shell and the connection.  May be called again."""
        await self._shell.restart()
        box, self._box = self._box, None
        if box is not None:
            await box.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _connected(self) -> Box:
        async with self._connecting:
            if self._box is None:
                self._box = await self._connect()
            return self._box

    async def _start_shell(self) -> Process:
        env, policy = self._environment
        box = await self._connected()
        return await box.start(
            _SHELL, cwd=self._workdir, env=env, env_policy=policy, pipe_stdin=True, sandbox=self._sandbox
        )


def _tools(own: ExecserverToolset) -> list[BetaAsyncFunctionTool[Any]]:
    @beta_async_tool(name="bash", input_schema=BetaManagedAgentsAgentToolset20260401BashInput)
    async def bash(
        command: str | None = None, restart: bool | None = None, timeout_ms: int | None = None
    ) -> str:
        """Run a command in a persistent bash shell."""
        return await own.bash(command, restart, timeout_ms)

    @beta_async_tool(name="read", input_schema=BetaManagedAgentsAgentToolset20260401ReadInput)
    async def read(file_path: str, view_range: list[int] | None = None) -> Any:
        """Read a file of the working directory."""
        return await _told("read", (await own.files()).read(file_path, view_range))

    @beta_async_tool(name="write", input_schema=BetaManagedAgentsAgentToolset20260401WriteInput)
    async def write(file_path: str, content: str) -> str:
        """Write a file, and the directories it lies in."""
        return await _told("write", (await own.files()).write(file_path, content))

    @beta_async_tool(name="edit", input_schema=BetaManagedAgentsAgentToolset20260401EditInput)
    async def edit(file_path: str, old_string: str, new_string: str, replace_all: bool | None = None) -> str:
        """Replace a string in a file; it must be there exactly once unless replace_all is set."""
        files = await own.files()
        return await _told("edit", files.edit(file_path, old_string, new_string, bool(replace_all)))

    @beta_async_tool(name="glob", input_schema=BetaManagedAgentsAgentToolset20260401GlobInput)
    async def glob(pattern: str, path: str | None = None) -> str:
        """List files that match a glob pattern, newest first."""
        return await _told("glob", (await own.files()).glob(pattern, path))

    @beta_async_tool(name="grep", input_schema=BetaManagedAgentsAgentToolset20260401GrepInput)
    async def grep(pattern: str, path: str | None = None) -> str:
        """Search the contents of files for a regular expression."""
        return await _told("grep", (await own.files()).grep(pattern, path))

    return [bash, read, write, edit, glob, grep]


async def _told(tool: str, doing: Awaitable[Any]) -> Any:
    """Return the answer of a file tool; what it cannot do is the framework's error."""
    try:
        return await doing
    except (Refused, ValueError) as error:
        raise ToolError(f"{tool}: {error}") from error
    except RequestFailed as error:
        raise ToolError(f"{tool}: {error.message}") from error
    except ExecServerError as error:
        raise ToolError(f"{tool}: {error}") from error
