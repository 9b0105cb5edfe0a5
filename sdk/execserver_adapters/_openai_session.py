"""A workspace on a box: the session that the agents of `openai-agents` work in.

Commands and the framework's own file operations go under one sandbox policy.  The session has a connection of
its own; its processes end with it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveWriteError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.workspace_paths import sandbox_path_str

from execserver_adapters import _openai_archives as archives
from execserver_adapters import _openai_files as files
from execserver_adapters._commands import Command, Commands
from execserver_adapters._kept import Kept
from execserver_adapters._openai_paths import check_access
from execserver_adapters._openai_processes import Processes, Running
from execserver_adapters._openai_setup import Connector, Setup, refuse_unsupported, retryable
from execserver_client import Box, ExecServerError, NotFoundError

_ANSWERS_WITHIN_S: Final = 10.0  # else the box counts as not running
_FIRST_LOOK_MS: Final = 10_000
_NEXT_LOOK_MS: Final = 250


class ExecserverSandboxSession(BaseSandboxSession):
    """One workspace.  Made by `ExecserverSandboxClient`."""

    def __init__(self, *, state: SandboxSessionState, connector: Connector, setup: Setup) -> None:
        self.state = state
        self._connector = connector
        self._setup = setup
        self._box: Box | None = None
        self._running_commands: Commands | None = None
        self._processes = Processes()
        self._forwards: dict[int, Any] = {}

    @property
    def box(self) -> Box:
        """The connection.  Raises `ExecTransportError` where there is none."""
        if self._box is None:
            raise ExecTransportError(
                command=(), message="the session is not started; enter it with `async with`", retryable=False
            )
        return self._box

    @property
    def _commands(self) -> Commands:
        if self._running_commands is None:
            self._running_commands = Commands(self.box)
        return self._running_commands

    @property
    def root(self) -> str:
        """The workspace on the box."""
        return sandbox_path_str(self.state.manifest.root)

    def _sandbox(self) -> Any:
        grants = [path.as_posix() for path, read_only in self._grants() if not read_only]
        return self._setup.sandbox(self.root, grants)

    def _grants(self) -> tuple[tuple[Any, bool], ...]:
        return self._workspace_path_policy().extra_path_grant_rules()

    # Life

    async def _ensure_backend_started(self) -> None:
        if self._box is not None and await self.running():
            return
        await self._drop()
        try:
            self._box = await self._connector.open(self.state)
            present = await self._box.files.exists(self.root)
        except ExecServerError as error:
            raise WorkspaceStartError(path=Path(self.root), cause=error, message=str(error)) from error
        if not present:
            self.state.workspace_root_ready = False
        self._set_start_state_preserved(present and self.state.workspace_root_ready)

    async def _prepare_backend_workspace(self) -> None:
        """Make the workspace, as the server's user: a sandbox cannot be laid around what does not exist."""
        box = self.box
        if await box.files.exists(self.root):
            return
        await box.files.mkdir(self.root, parents=True)
        if getattr(self.state, "workspace_root_owned", False):
            await box.files.chmod(self.root, 0o700)

    async def _after_start_failed(self) -> None:
        await self._drop()

    async def running(self) -> bool:
        """Tell whether the box answers."""
        if self._box is None:
            return False
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return bool(await self._box.files.exists(self.root))
        except (ExecServerError, TimeoutError):
            return False

    async def _shutdown_backend(self) -> None:
        await self._drop()

    async def _drop(self) -> None:
        await self._processes.end_all()
        forwards, self._forwards = [*self._forwards.values()], {}
        for forward in forwards:
            await forward.aclose()
        box, self._box = self._box, None
        commands, self._running_commands = self._running_commands, None
        if commands is not None:
            await commands.aclose()
        if box is not None:
            await self._connector.close(box)

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        """Return False: a snapshot is always restored, instead of trusting a note in a shared folder."""
        return False

    # Manifest

    async def _validate_manifest_application(
        self,
        *,
        only_ephemeral: bool = False,
        manifest: Manifest | None = None,
        session_running: bool | None = None,
    ) -> None:
        refuse_unsupported(manifest or self.state.manifest)
        await super()._validate_manifest_application(
            only_ephemeral=only_ephemeral, manifest=manifest, session_running=session_running
        )

    async def _apply_manifest(self, *, only_ephemeral: bool = False, provision_accounts: bool = True) -> Any:
        refuse_unsupported(self.state.manifest)
        return await super()._apply_manifest(
            only_ephemeral=only_ephemeral, provision_accounts=provision_accounts
        )

    async def provision_manifest_accounts(self) -> None:
        """Refuse accounts."""
        refuse_unsupported(self.state.manifest)

    # Commands

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        limits = self._setup.limits
        within = limits.command if timeout is None else timeout
        async with self._commanding(command):
            try:
                wanted = Command(
                    [str(part) for part in command],
                    cwd=self.root,
                    env=await self._variables(),
                    env_policy=self._setup.env_policy,
                    sandbox=self._sandbox(),
                    timeout=within,
                )
                half = limits.output // 2
                ran = await self._commands.run(wanted, lambda: Kept(half, half))
            except TimeoutError as error:
                raise ExecTimeoutError(command=command, timeout_s=within, cause=error) from error
        if ran.stdout.left_out or ran.stderr.left_out:
            raise ExecTransportError(
                command=command,
                message=f"the command printed more than {limits.output} bytes",
                context={"reason": "output_limit", "exit_code": ran.exit_code},
                retryable=False,
            )
        return ExecResult(stdout=ran.stdout.joined(), stderr=ran.stderr.joined(), exit_code=ran.exit_code)

    async def _variables(self) -> Mapping[str, str]:
        return {"HOME": self.root, **self._setup.env, **await self.state.manifest.environment.resolve()}

    @asynccontextmanager
    async def _commanding(self, command: tuple[str | Path, ...]) -> AsyncIterator[None]:
        try:
            yield
        except (ExecTimeoutError, ExecTransportError):
            raise
        except NotFoundError as error:
            raise WorkspaceRootNotFoundError(path=Path(self.root), cause=error) from error
        except ExecServerError as error:
            raise ExecTransportError(
                command=command, cause=error, message=str(error), retryable=retryable(error)
            ) from error

    def supports_pty(self) -> bool:
        """Return True: processes go on between two turns, with a terminal or without."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a process and return what it prints at first; it ends with the session at the latest."""
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        look = _FIRST_LOOK_MS if yield_time_s is None else int(yield_time_s * 1000)
        async with self._commanding(command):
            process = await self.box.start(
                argv,
                cwd=self.root,
                env=await self._variables(),
                env_policy=self._setup.env_policy,
                tty=tty,
                sandbox=self._sandbox(),
            )
            number = await self._processes.add(Running(process, tty))
            return await self._processes.update(
                number, clamp_pty_yield_time_ms(look) / 1000, max_output_tokens
            )

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type into a terminal, or only look at what a process has printed since."""
        running = self._processes.get(session_id)
        look = _NEXT_LOOK_MS if yield_time_s is None else int(yield_time_s * 1000)
        async with self._commanding(("write_stdin",)):
            if chars:
                if not running.tty:
                    raise RuntimeError("stdin is not available for this process")  # the framework's own words
                if not running.done:
                    await running.process.write(chars.encode())
            seconds = resolve_pty_write_yield_time_ms(yield_time_ms=look, input_empty=not chars) / 1000
            return await self._processes.update(session_id, seconds, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """End every process that goes on."""
        await self._processes.end_all()

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """Lead a port of this machine to the box's."""
        try:
            if port not in self._forwards:
                self._forwards[port] = await self.box.ports.forward(0, "127.0.0.1", port)
        except (ExecServerError, OSError) as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "execserver", "detail": str(error)},
                cause=error,
            ) from error
        host, local = self._forwards[port].address
        return ExposedPortEndpoint(host=host, port=local, tls=False)

    # Files

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _validate_remote_path_access(
        self, path: Path | str, *, for_write: bool = False, recursive_remove: bool = False
    ) -> Path:
        policy = self._workspace_path_policy()
        if recursive_remove:
            policy.validate_recursive_remove(path)
        return await check_access(self.box, policy, path, for_write=for_write, sandbox=self._sandbox())

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return the content of a file."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        place = await self._validate_path_access(path)
        limit = self._setup.limits.file
        return io.BytesIO(await files.content(self.box, place, sandbox=self._sandbox(), limit=limit))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = await self._validate_path_access(path)
        return await files.beginning(self.box, place, sandbox=self._sandbox(), size=max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, and the folders it lies in."""
        await self._write(path, data, user=user, new=False)

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._write(path, data, user=user, new=True)

    async def _write(self, path: Path, data: io.IOBase, *, user: str | User | None, new: bool) -> None:
        stream = coerce_write_payload(path=path, data=data).stream
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        place = await self._validate_path_access(path, for_write=True)
        limit = self._setup.limits.file
        content = await asyncio.to_thread(stream.read, limit + 1)
        if len(content) > limit:
            context: dict[str, object] = {"reason": "file_too_large", "limit": limit}
            raise WorkspaceArchiveWriteError(path=place, context=context, retryable=False)
        await files.put(self.box, place, content, sandbox=self._sandbox(), new=new)

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Make a folder."""
        if user is not None:
            place = await self._check_mkdir_with_exec(path, parents=parents, user=user)
        else:
            place = await self._validate_path_access(path, for_write=True)
        await files.make_folder(self.box, place, sandbox=self._sandbox(), parents=parents)

    # Snapshots

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar stream: all of it, or an error."""
        async with self._archiving():
            return await archives.fetch(
                self.box,
                self.root,
                self._persist_workspace_skip_relpaths(),
                sandbox=self._sandbox(),
                limit=self._setup.limits.workspace,
            )

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar stream into the workspace."""
        with await archives.checked(data, self.root, limit=self._setup.limits.workspace) as spool:
            async with self._archiving():
                await archives.unpack(self.box, self.root, spool, sandbox=self._sandbox())

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        """Look at the snapshot before the workspace is emptied for it."""
        with await self.state.snapshot.restore(dependencies=self.dependencies) as stored:
            spool = await archives.checked(stored, self.root, limit=self._setup.limits.workspace)
        with spool:
            await self._clear_workspace_root_on_resume()
            async with self._archiving():
                await archives.unpack(self.box, self.root, spool, sandbox=self._sandbox())

    async def _remove_workspace_entry_on_resume(self, path: Path) -> None:
        """Remove what lies in the workspace, outside of the sandbox, which holds some names fast."""
        async with self._archiving():
            await self.box.files.remove(sandbox_path_str(path), recursive=True, missing_ok=True)

    @asynccontextmanager
    async def _archiving(self) -> AsyncIterator[None]:
        try:
            yield
        except ExecServerError as error:
            raise WorkspaceArchiveWriteError(
                path=Path(self.root), cause=error, message=str(error), retryable=retryable(error)
            ) from error
