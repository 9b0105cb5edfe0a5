"""OpenAI Agents SDK: sandbox sessions on a box.

    client = ExecserverSandboxClient("dev", sandbox="workspace-write")
    config = RunConfig(sandbox=SandboxRunConfig(client=client))
    await Runner.run(SandboxAgent(name="Dev", instructions="..."), "Fix the test", run_config=config)

A manifest without a `root` of its own gets a new folder of the box, which `delete` removes; any other root is
a folder of the box that stays.
"""

from __future__ import annotations

import logging
import posixpath
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from execserver_adapters._environments import env_policy_of
from execserver_adapters._openai_session import ExecserverSandboxSession
from execserver_adapters._openai_setup import Limits, Setup, refuse_unsupported
from execserver_adapters._policies import checked
from execserver_client import Box, ExecServerError, RequestFailed, connect

__all__ = [
    "ExecserverSandboxClient",
    "ExecserverSandboxClientOptions",
    "ExecserverSandboxSession",
    "ExecserverSandboxSessionState",
    "Limits",
]

_log: Final = logging.getLogger(__name__)
_DEFAULT_ROOT: Final = Manifest.model_fields["root"].default
_OWN_FOLDER: Final = re.compile(r"execserver-agent-[0-9a-f]{32}")


class ExecserverSandboxClientOptions(BaseSandboxClientOptions):
    """What differs from session to session: `exposed_ports` of the box can be reached from this machine."""

    type: Literal["execserver"] = "execserver"
    exposed_ports: tuple[int, ...] = ()


class ExecserverSandboxSessionState(SandboxSessionState):
    """What is needed to go on: the workspace, and the session of the box if it is kept."""

    type: Literal["execserver"] = "execserver"
    workspace_root_owned: bool = False
    box_session_id: str | None = None


class ExecserverSandboxClient(BaseSandboxClient["ExecserverSandboxClientOptions | None"]):
    """Makes sessions on one box, each with a connection of its own."""

    backend_id = "execserver"
    supports_default_options = True

    def __init__(
        self,
        box: str | None = None,
        *,
        sandbox: str | Mapping[str, Any] = "workspace-write",
        network: bool = False,
        env: Mapping[str, str] | None = None,
        inherit_env: str = "core",
        limits: Limits | None = None,
        keep: float | None = None,
        workspaces: str = "/tmp",  # of the box
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        **connecting: Any,
    ) -> None:
        """`box` and `connecting` (`token`, `token_file`, `ca_file`, `options`) are those of `connect`.

        `sandbox` is `workspace-write`, `read-only` (for a workspace that exists already), `full-access`, or
        the contract's object.  `network` opens it to the network.  `env` is set over what commands inherit of
        the server's environment (`inherit_env`: `core`, `all`, `none`); a manifest's stands above both.  With
        `keep` the box keeps a session for so many seconds without a connection, also after `shutdown`, and
        `resume` attaches it again; `delete` ends it.  `workspaces` is the folder of the box in which new
        workspaces are made.  Raises ValueError.
        """
        self._setup = Setup(
            checked(sandbox), network, dict(env or {}), env_policy_of(inherit_env), limits or Limits()
        )
        self._box = box
        self._keep = keep
        self._workspaces = posixpath.normpath(workspaces)
        self._connecting = connecting
        self._instrumentation = instrumentation if instrumentation is not None else Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ExecserverSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Return a new session; it connects when it is started."""
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        refuse_unsupported(manifest)
        owned = manifest.root == _DEFAULT_ROOT
        session_id = uuid.uuid4()
        if owned:
            root = posixpath.join(self._workspaces, f"execserver-agent-{uuid.uuid4().hex}")
            manifest = manifest.model_copy(update={"root": root}, deep=True)
        state = ExecserverSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            workspace_root_owned=owned,
            exposed_ports=options.exposed_ports if options is not None else (),
        )
        return self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session that goes on in the workspace of an earlier one, or in its snapshot."""
        if not isinstance(state, ExecserverSandboxSessionState):
            raise TypeError("this client resumes what ExecserverSandboxClient has made")
        state.assert_path_grants_rebound()
        refuse_unsupported(state.manifest)
        return self._session(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session, and remove its workspace if it was made for it; a box that is gone keeps it."""
        inner = session._inner
        if not isinstance(inner, ExecserverSandboxSession):
            raise TypeError("this client deletes what ExecserverSandboxClient has made")
        await inner.shutdown()
        state = inner.state
        assert isinstance(state, ExecserverSandboxSessionState)
        owned = state.workspace_root_owned and self._is_ours(inner.root)
        if owned or state.box_session_id is not None:
            try:
                await self._remove(state, inner.root if owned else None)
            except ExecServerError as error:
                _log.warning("the box keeps what is left of a session: %s", error)
        return session

    async def _remove(self, state: ExecserverSandboxSessionState, folder: str | None) -> None:
        box = await self.open(state)
        try:
            if folder is not None:
                await box.files.remove(folder, recursive=True, missing_ok=True)
            state.box_session_id = None
        finally:
            await box.aclose()

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return a state from what `serialize_session_state` made of it."""
        return self._deserialize_session_state_payload(payload, ExecserverSandboxSessionState)

    async def open(self, state: SandboxSessionState) -> Box:
        """Connect a session; for the session itself."""
        assert isinstance(state, ExecserverSandboxSessionState)
        if self._keep is None:
            return await connect(self._box, **self._connecting)
        box = await self._resumed(state.box_session_id)
        if box is None:
            box = await connect(self._box, keep=self._keep, **self._connecting)
        state.box_session_id = box.session_id
        return box

    async def close(self, box: Box) -> None:
        """End the connection of a session, or leave it to the next one; for the session itself."""
        if self._keep is None:
            await box.aclose()
        else:
            await box.detach()

    async def _resumed(self, session_id: str | None) -> Box | None:
        """Return the session of that id, or None where it has ended."""
        if session_id is None:
            return None
        try:
            return await connect(self._box, resume=session_id, keep=self._keep, **self._connecting)
        except RequestFailed:
            return None

    def _is_ours(self, root: str) -> bool:
        """Tell whether a root has a name that `create` gives: no changed state removes another."""
        parent, name = posixpath.split(posixpath.normpath(root))
        return parent == self._workspaces and _OWN_FOLDER.fullmatch(name) is not None

    def _session(self, state: ExecserverSandboxSessionState) -> SandboxSession:
        inner = ExecserverSandboxSession(state=state, connector=self, setup=self._setup)
        return self._wrap_session(inner, instrumentation=self._instrumentation)
