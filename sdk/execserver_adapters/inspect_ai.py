"""Inspect: a sandbox provider whose samples run on a box, each in a folder of its own.

    Task(..., sandbox="execserver")                    # EXECSERVER_BOX, else a private server here
    Task(..., sandbox=("execserver", "dev"))           # a box by name; a URL needs the configuration
    Task(..., sandbox=SandboxEnvironmentSpec("execserver", ExecserverConfig(box="dev", network=True)))

The entry point of the group `inspect_ai` registers it.  A sample's folder is made when the sample begins and
removed when it ends; with `workspace-write` only that folder and the temporary ones are writable.  Files are
read and written in the same sandbox as commands.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import posixpath
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict, Field, field_validator

from execserver_adapters._accounts import Account, UserUnsupported, account_of, probe_argv
from execserver_adapters._commands import Command, Commands, TimedOut
from execserver_adapters._kept import Kept
from execserver_adapters._os_errors import as_os_error, number_of
from execserver_adapters._policies import checked, is_confined, sandbox_of
from execserver_client import (
    Box,
    ExecServerError,
    RequestFailed,
    TransportClosed,
    connect,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG: Final = logging.getLogger(__name__)
_PROBE_LIMIT_S: Final = 30.0
_CLEANUP_LIMIT_S: Final = 60.0
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_WHOLE_BYTES: Final = 8 * 1024 * 1024  # what one answer may hold
_SANDBOX_FAILED: Final = 101
_SANDBOX_SAYS: Final = "codex-linux-sandbox: Failed to execvp "
_EACCES, _ENOENT, _ENOTDIR = 13, 2, 20


class ExecserverConfig(BaseModel):
    """Where the samples of a task run and what they may do there.

    `box` is a box as in `execserver run`; None takes `EXECSERVER_BOX`, else a private server on this machine.
    `sandbox` is `workspace-write`, `read-only`, `full-access` or the contract's object.  `network` counts
    with the first two.  `folder` is where the samples' folders are made, `env` is set for every command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    box: str | None = None
    sandbox: Literal["workspace-write", "read-only", "full-access"] | dict[str, Any] = "workspace-write"
    network: bool = False
    folder: str = "/tmp"
    env: dict[str, str] = Field(default_factory=dict)
    token_file: str | None = None

    @field_validator("folder")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not posixpath.isabs(value):
            raise ValueError("the folder of the samples must be absolute")
        return value

    def __hash__(self) -> int:  # Inspect groups samples by their configuration
        return hash(self.model_dump_json())


@sandboxenv(name="execserver")
class ExecserverSandboxEnvironment(SandboxEnvironment):
    """One sample's folder on a box, and the connection to it."""

    def __init__(self, box: Box, config: ExecserverConfig, folder: str) -> None:
        super().__init__()
        self._box = box
        self._config = config
        self.folder = folder
        self._commands = Commands(box)
        sandbox = sandbox_of(config.sandbox, [folder], network=config.network)
        self._sandbox = None if sandbox is None else sandbox.context(folder)
        self._accounts: dict[str, Account] = {}

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Connect and make the sample's folder.  Raises SandboxUnavailableError."""
        settings = _settings(config)
        _expect_asyncio()
        try:
            box = await connect(settings.box, token_file=settings.token_file)
        except ExecServerError as error:
            raise SandboxUnavailableError(f"no connection to the box: {error}") from error
        try:
            folder = await _make_folder(box, settings.folder)
            return {"default": cls(box, settings, folder)}
        except BaseException:
            await box.aclose()
            raise

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End what the sample left running, remove its folder and disconnect."""
        for environment in environments.values():
            await environment.as_type(ExecserverSandboxEnvironment)._end()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log or a task file holds."""
        return ExecserverConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command.  Of more output than Inspect's limit the end is returned.

        A command that timed out is not run again: it may have done half of its work.
        """
        variables = {**self._config.env, **(env or {})}
        if user is not None:
            account = await self._account(user)
            cmd, variables = account.argv(cmd), account.env(variables)
        data = input.encode() if isinstance(input, str) else input
        folder = self._path(cwd or "")
        command = Command(cmd, folder, variables, data, self._sandbox, timeout)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            ran = await self._commands.run(command, lambda: Kept(0, limit))
        except TimedOut as error:
            told = TimeoutError(str(error))
            told.truncated_output = error.stdout.text(note=False) + error.stderr.text(note=False)  # type: ignore[attr-defined]
            raise told from None
        except RequestFailed as error:
            return _not_started(error, cmd[0])
        except TransportClosed as error:
            raise SandboxUnavailableError(f"the box cannot be reached: {error}") from error
        stderr = ran.stderr.text(note=False)
        code = _not_executed(ran.exit_code, stderr)
        if code == _NOT_EXECUTABLE and "permission denied" in stderr.lower():
            raise PermissionError(_EACCES, stderr.strip(), cmd[0])
        return ExecResult(code == 0, code, ran.stdout.text(note=False), stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; folders above it are made."""
        path = self._path(file)
        data = contents.encode() if isinstance(contents, str) else contents
        with _file_errors(file):
            try:
                await self._box.files.write(path, data, sandbox=self._sandbox)
            except RequestFailed as error:
                if number_of(error) != _ENOENT:
                    raise
                await self._box.files.mkdir(posixpath.dirname(path), sandbox=self._sandbox)
                await self._box.files.write(path, data, sandbox=self._sandbox)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str:
        """Read a text."""

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes:
        """Read bytes."""

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file; text must be UTF-8, and its ends of lines stay as they are."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        path = self._path(file)
        with _file_errors(file):
            found = await self._box.files.stat(path, sandbox=self._sandbox)
            if found.is_directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
            if found.size > limit:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            if self._sandbox is not None and found.size > _WHOLE_BYTES:
                data = await self._read_by_command(path, limit)
            else:
                data = await self._box.files.read(path, max_bytes=limit, sandbox=self._sandbox)
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Tell how a person gets there.  Raises NotImplementedError for a private server."""
        box = self._config.box or os.environ.get("EXECSERVER_BOX")
        if not box:
            raise NotImplementedError("a private server has no address: name a box")
        return SandboxConnection(
            type="execserver",
            command=f"execserver shell {shlex.quote(box)} --cwd {shlex.quote(self.folder)}",
        )

    def default_polling_interval(self) -> float:
        """Seconds between two looks of Inspect at its services in the sandbox."""
        return 0.2

    async def _read_by_command(self, path: str, limit: int) -> bytes:
        """Read what would not fit into one answer: block by block servers read outside of sandboxes only."""
        command = Command(["cat", "--", path], self.folder, {}, None, self._sandbox, None)
        ran = await self._commands.run(command, lambda: Kept(limit, 0))
        if ran.exit_code or ran.stdout.left_out:
            raise OSError(errno.EIO, ran.stderr.text() or "the file grew while it was read", path)
        return ran.stdout.joined()

    def _path(self, file: str) -> str:
        return posixpath.join(self.folder, file)

    async def _account(self, user: str) -> Account:
        if user not in self._accounts:
            try:
                probe = Command(probe_argv(user), "/", timeout=_PROBE_LIMIT_S)
                ran = await self._commands.run(probe, lambda: Kept(4096, 0))
                confined = is_confined(self._config.sandbox)
                self._accounts[user] = account_of(user, ran.stdout.text(), confined=confined)
            except UserUnsupported as error:
                raise SandboxUserUnsupportedError(str(error)) from None
            except (TransportClosed, RequestFailed) as error:
                raise SandboxUnavailableError(f"the box cannot be reached: {error}") from error
        return self._accounts[user]

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_CLEANUP_LIMIT_S):
                await self._box.files.remove(self.folder, recursive=True, missing_ok=True)
        except (ExecServerError, TimeoutError) as error:
            _log_left(self.folder, error)
        finally:
            await self._commands.aclose()
            await self._box.aclose()


def _settings(config: SandboxEnvironmentConfigType | None) -> ExecserverConfig:
    if config is None:
        return ExecserverConfig()
    if isinstance(config, str):
        return ExecserverConfig(box=config)
    if isinstance(config, ExecserverConfig):
        checked(config.sandbox)
        return config
    kind = type(config).__name__
    raise TypeError(f"the configuration of this sandbox is a box or an ExecserverConfig, not {kind}")


def _expect_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise SandboxUnavailableError(
            "the execserver sandbox needs asyncio: unset INSPECT_ASYNC_BACKEND or set it to asyncio"
        ) from None


async def _make_folder(box: Box, below: str) -> str:
    """Make a folder with a name of its own that only the server's user may enter; return its path."""
    template = posixpath.join(below, "inspect-XXXXXXXXXX")
    script = 'umask 077 && mkdir -p "$1" && exec mktemp -d "$2"'
    made = Command(["/bin/sh", "-c", script, "sh", below, template], "/", timeout=_PROBE_LIMIT_S)
    ran = await Commands(box).run(made, lambda: Kept(4096, 0))
    folder = ran.stdout.text().removesuffix("\n")
    if ran.exit_code or not folder.startswith(posixpath.join(below, "inspect-")):
        raise SandboxUnavailableError(f"no folder can be made in {below!r} of the box: {ran.stderr.text()}")
    return folder


def _not_started(error: RequestFailed, program: str) -> ExecResult[str]:
    if number_of(error) == _EACCES:
        raise PermissionError(_EACCES, "Permission denied", program) from None
    if number_of(error) in (_ENOENT, _ENOTDIR):
        return ExecResult(False, _NOT_FOUND, "", f"{program}: {error.message}\n")
    raise SandboxUnavailableError(f"the box cannot start the command: {error.message}") from error


def _not_executed(code: int, stderr: str) -> int:
    """Return the shell's code where a sandbox says that it could not execute the command, else the code."""
    if code == _SANDBOX_FAILED and stderr.startswith(_SANDBOX_SAYS):
        return _NOT_FOUND if "(os error 2)" in stderr else _NOT_EXECUTABLE
    return code


@contextmanager
def _file_errors(file: str) -> Iterator[None]:
    try:
        yield
    except RequestFailed as error:
        raise as_os_error(error, file) from None
    except TransportClosed as error:
        raise SandboxUnavailableError(f"the box cannot be reached: {error}") from error


def _log_left(folder: str, error: Exception) -> None:
    _LOG.warning("the sample's folder %r is left on the box: %s", folder, error)
