"""`process/start` with a `shellSnapshot`: loaded with the first request that has one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execserver.core.env_policy import child_environment
from execserver.core.shell_snapshot import Snapshot, is_wanted
from execserver.handlers.context import Call
from execserver.handlers.replies import Later, Reply
from execserver.protocol.process import ExecParams
from execserver.protocol.record import encode_record
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import SpawnSpec

if TYPE_CHECKING:
    from execserver.egress.masking import Masking

StartWith = Callable[[Snapshot | None], Reply]
StartCapture = Callable[[list[str]], Child]


def start_with_snapshot(
    call: Call, params: ExecParams, start: StartWith, start_capture: StartCapture
) -> Reply | Later:
    """Start a command with the snapshot it asks for, or without one if there is none.

    Raises InvalidParams for a request that cannot be met.
    """
    request = params.shell_snapshot
    if request is None or not is_wanted(params.argv, request):
        return start(None)
    table, snapshots, key = call.session.processes, call.session.snapshots, _key(params)
    table.check_free(params.process_id)
    given = {name.encode(): value.encode() for name, value in params.env.items()}

    def find() -> Snapshot | None:
        return snapshots.find(key, request, given, start_capture)

    if snapshots.at_once(key):
        return start(find())
    reservation = table.reserve(params.process_id)

    def capture_and_start() -> Reply:
        try:
            snapshot = find()
        finally:
            reservation.release()  # nothing waits between here and the start, which takes the id itself
        return start(snapshot)

    return Later(capture_and_start)


def with_snapshot(
    call: Call, params: ExecParams, spec: SpawnSpec, snapshot: Snapshot | None, masking: Masking | None
) -> tuple[ExecParams, SpawnSpec]:
    """Return what starts a command with a snapshot, and the params that lists, logs and records get."""
    if snapshot is None:
        return params, spec
    env = child_environment(call.services.inherited, params.env_policy, params.env, snapshot.exports)
    spec = spec._replace(argv=[word.encode() for word in snapshot.command(params.argv)], env=env)
    if masking is not None:
        from execserver.handlers.network import masked

        spec = masked(spec, masking)
        # What the start-up files have set may be a credential, too: in a function, or in the client's words.
        snapshot = snapshot._replace(state=masking.hidden(snapshot.state))
        hidden = masking.all_hidden([word.encode() for word in params.argv])
        params = replace(params, argv=tuple([word.decode() for word in hidden]))
    return params, spec._replace(env=dict(spec.env) | snapshot.variables())


def _key(params: ExecParams) -> Hashable:
    """Return what a snapshot depends on.  Not `env`, which differs with each call of a tool."""
    request, policy = params.shell_snapshot, params.env_policy
    assert request is not None
    return (
        *(request.scope_id, request.shell.name, request.shell.path, params.cwd.uri),
        None if policy is None else encode_record(policy),
        params.sandbox,
        params.enforce_managed_network,
        _masking(params),
    )


def _masking(params: ExecParams) -> Hashable:
    """Return how credentials are masked: what a capture saw unmasked is for no masked process."""
    launch = params.network_proxy
    return None if launch is None or not launch.proxy.credential_masking else encode_record(launch.proxy)
