"""Every module of the product has its test file, or stands in COVERED_BY with the file that covers it.

A module has its own test file if a test has its name, or one of its layer imports it.  Nothing is said here
about how much of a module is tested; this finds the module that nobody thought of.
"""

from __future__ import annotations

import functools

from tests.support.source import ROOT, Module, modules

SDK = ("execserver_client", "execserver_adapters", "pytest_execserver")  # and these in `tests/sdk/`
TOP = ("execserver", "verbs")  # what is in these packages is tested in `tests/` itself

# A name that ends with a dot stands for the modules of that package; the longest one counts.
COVERED_BY: dict[str, str] = {
    "execserver_adapters._anthropic_files": "sdk/adapters/test_anthropic.py",
    "execserver_adapters._anthropic_shell": "sdk/adapters/test_anthropic.py",
    "execserver_adapters._openai_archives": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._openai_files": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._openai_paths": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._openai_processes": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._openai_session": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._openai_setup": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters._following": "sdk/adapters/test_openai_agents.py",
    "execserver_adapters.anthropic": "sdk/adapters/test_anthropic.py",
    "execserver_adapters.deepagents": "sdk/adapters/test_deepagents.py",
    "execserver_adapters.openai_agents": "sdk/adapters/test_openai_agents.py",
    "execserver.__main__": "test_cli.py",
    "execserver_adapters._commands": "sdk/adapters/test_inspect_ai.py",
    "execserver_adapters.harbor": "sdk/adapters/test_harbor.py",
    "execserver_adapters.inspect_ai": "sdk/adapters/test_inspect_ai.py",
    "execserver_adapters.mini_swe_agent": "sdk/adapters/test_mini_swe_agent.py",
    "execserver._helpers": "packaging/test_wheel.py",
    "execserver.app": "test_cli.py",
    "execserver.services.running.process_packing": "e2e/test_upgrade.py",
    "execserver.services.running.process_roles": "services/test_process.py",
    "execserver.upgrading.": "e2e/test_upgrade.py",
    "execserver.services.surviving.": "crash/test_recovery.py",
    "execserver.services.settling": "e2e/test_server_end.py",
    "execserver.survival.keeper": "crash/test_keeper.py",
    "execserver.survival.recovery": "crash/test_recovery.py",
    "execserver.survival.probing": "crash/test_refusals.py",
    "execserver.name_services": "packaging/test_environment.py",
    "execserver.server": "e2e/test_server_end.py",
    "execserver.box.": "box/test_run.py",
    "execserver.box.web.": "box/web/test_console.py",
    "execserver.client.rules.port_window": "client/test_ports.py",
    "execserver.client.operations.watches": "client/test_file_watches.py",
    "execserver.client.carriers.careful_upgrade": "client/test_websocket_connecting.py",
    "execserver.client.carriers.sockets": "client/test_websocket_connecting.py",
    "execserver.client.carriers.tuning": "client/test_websocket_connecting.py",
    "execserver.client.carriers.children": "client/test_stdio_transport.py",
    "execserver.client.carriers.transport": "client/test_against_server.py",
    "execserver.client.communicate": "client/test_process.py",
    "execserver.client.operations.processes": "client/test_process.py",
    "execserver.client.policies": "sdk/test_sandbox.py",
    "execserver.client.relay.remote_env": "client/test_against_server.py",
    "execserver_client._communicate": "sdk/test_process.py",
    "execserver_client._connection": "sdk/test_session.py",
    "execserver_client._running": "sdk/test_box.py",
    "execserver_client.result": "sdk/test_box.py",
    "execserver_client._conversation": "sdk/test_websocket.py",
    "execserver_client._errands": "sdk/test_ports.py",
    "execserver_client._forwards": "sdk/test_ports.py",
    "execserver_client._inbox": "sdk/test_websocket.py",
    "execserver_client._opening": "sdk/test_ports.py",
    "execserver_client._port_ends": "sdk/test_ports.py",
    "execserver_client._slots": "sdk/test_session.py",
    "execserver_client.sync._forwards": "sdk/test_blocking_parts.py",
    "execserver_client._tasks": "sdk/test_session.py",
    "execserver.files.birth_time": "e2e/test_paths_without_links.py",
    "execserver.files.no_symlinks": "e2e/test_paths_without_links.py",
    "execserver.files.capability_bundle": "services/test_discovery_roots.py",
    "execserver.files.capability_names": "files/test_capability_loading.py",
    "execserver.files.capability_roots": "services/test_discovery_roots.py",
    "execserver.handlers.discovery": "e2e/test_newest_transcripts.py",
    "execserver.handlers.process_start": "handlers/test_sandboxed_start.py",
    "execserver.handlers.shell_snapshots": "e2e/test_shell_snapshots.py",
    "execserver.client.client": "client/test_against_server.py",
    "execserver.remote.admission": "remote/test_stream_handshakes.py",
    "execserver.remote.requests": "remote/test_registry.py",
    "execserver.http_client.": "services/test_http_service.py",
    "execserver.mcp.call": "mcp/test_shell_calls.py",
    "execserver.mcp.host": "mcp/test_ends.py",
    "execserver.protocol.discovery": "e2e/test_newest_transcripts.py",
    "execserver.protocol.environment": "test_compatibility_page.py",
    "execserver.eventloop.locks": "client/test_connection.py",
    "execserver.protocol.pieces": "handlers/test_filesystem.py",
    "execserver.protocol.watching": "handlers/test_watching.py",
    "execserver.relay.app": "relay/test_life.py",
    "execserver.relay.cluster.joining": "relay/cluster/test_node.py",
    "execserver.relay.cluster.survey": "test_relay_status.py",
    "execserver.relay.cluster.telling": "relay/cluster/test_node.py",
    "execserver.relay.handed_over": "relay/test_upgrade.py",
    "execserver.relay.listener": "relay/test_life.py",
    "execserver.relay.routes": "relay/test_routing.py",
    "execserver.remote.auth.": "remote/test_auth_resolve.py",
    "execserver.verbs.relay_engine": "test_relay_status.py",
    "execserver.remote.running": "remote/test_serving.py",
    "execserver.remote.plain_executor": "remote/test_remote_mode.py",
    "execserver.remote.plain_transport": "remote/test_remote_mode.py",
    "execserver.sandbox.masks.covers": "zygote/test_confined.py",
    "execserver.sandbox.proxy.joining": "zygote/test_bubblewrap.py",
    "execserver.sandbox.files.trees": "sandbox/test_guarded_files.py",
    "execserver.sandbox.files.guarded_no_symlinks": "e2e/test_paths_without_links.py",
    "execserver.sandbox.kernel.limits": "sandbox/attacks/test_in_flight.py",
    "execserver.sandbox.nesting": "helpers/test_linux_sandbox_stages.py",
    "execserver.sandbox.policy.resolved_paths": "sandbox/test_plan_properties.py",
    "execserver.sandbox.rootfs.landlock_rules": "sandbox/attacks/test_fifos.py",
    "execserver.files.change": "client/test_file_changes.py",
    "execserver.handlers.changes": "client/test_file_changes.py",
    "execserver.protocol.changes": "client/test_file_changes.py",
    "execserver.handlers.batches": "client/test_batches.py",
    "execserver.protocol.batches": "client/test_batches.py",
    "execserver.services.trees.confined_batches": "client/test_batches.py",
    "execserver.handlers.trees": "client/test_trees.py",
    "execserver.protocol.trees": "client/test_trees.py",
    "execserver.services.trees.archiving": "client/test_archive.py",
    "execserver.services.trees.extracting": "client/test_extract.py",
    "execserver.services.trees.globbing": "client/test_trees.py",
    "execserver.services.trees.ignoring": "client/test_gitignore.py",
    "execserver.services.trees.hashing": "client/test_trees.py",
    "execserver.services.trees.searching": "client/test_search.py",
    "execserver.services.trees.pages": "client/test_trees.py",
    "execserver.files.folders": "client/test_file_watches.py",
    "execserver.handlers.file_watches": "client/test_file_watches.py",
    "execserver.protocol.file_watches": "client/test_file_watches.py",
    "execserver.services.egress.": "egress/test_attacks.py",
    "execserver.handlers.network": "e2e/test_egress_transcripts.py",
    "execserver.protocol.network": "e2e/test_egress_transcripts.py",
    "execserver.services.file_watches.": "client/test_file_watches.py",
    "execserver.handlers.ports": "client/test_ports.py",
    "execserver.services.ports.": "client/test_ports.py",
    "execserver.services.sessions.kept": "handlers/test_watching.py",
    "execserver.services.confinement.stale_masks": "e2e/test_sandboxed_metadata.py",
    "execserver.services.discovery.folders": "services/test_discovery_roots.py",
    "execserver.services.files.sandboxed": "handlers/test_filesystem.py",
    "execserver.handlers.audit": "e2e/test_audit.py",
    "execserver.protocol.audit": "e2e/test_audit.py",
    "execserver.watching": "e2e/test_metrics.py",
    "execserver.services.resources.account": "e2e/test_limits.py",
    "execserver.services.running.process_recorder": "e2e/test_recording.py",
    "execserver.services.resources.limit_table": "e2e/test_limits.py",
    "execserver.services.resources.limiting": "e2e/test_limits.py",
    "execserver.services.running.watching": "handlers/test_watching.py",
    "execserver.transports.front": "e2e/test_upgrade.py",
    "execserver.transports.open_connections": "e2e/test_upgrade.py",
    "execserver.transports.metrics_endpoint": "e2e/test_metrics.py",
    "execserver.transports.transport": "transports/test_connection.py",
    "execserver.verbs.box": "box/test_run.py",
    "execserver.verbs.cp": "box/test_cp.py",
    "execserver.verbs.edit": "box/test_edit.py",
    "execserver.verbs.find": "box/test_find.py",
    "execserver.verbs.pager": "test_man_page.py",
    "execserver.verbs.sides": "box/test_sync.py",
    "execserver.verbs.sync": "box/test_sync.py",
    "execserver.verbs.forward_ports": "box/test_forward.py",
    "execserver.verbs.kept": "box/test_kept.py",
    "execserver.verbs.program": "test_aliases.py",
    "execserver.verbs.usage": "test_aliases.py",
    "execserver.verbs.web": "box/web/test_console.py",
    "execserver.wire.ended_protocol": "e2e/test_nothing_left.py",
    # The zygote's parts are tested whole, in a zygote: who forks whom is what matters there.
    "execserver.zygote.confine.": "zygote/test_confined.py",
    "execserver.zygote.supervision.": "zygote/test_supervisor.py",
    "helpers.fs_confined": "helpers/test_codex_fs.py",
    "helpers.fs_open": "helpers/test_codex_fs_newest.py",
    "helpers.fs_no_symlinks": "helpers/test_codex_fs.py",
    "helpers.fs_worker": "e2e/test_sandbox_back_ends.py",
    "helpers.linux_sandbox_cleanup": "helpers/test_linux_sandbox.py",
    "helpers.linux_sandbox_routes": "helpers/test_linux_sandbox_stages.py",
    "helpers.search_lines": "client/test_search.py",
    "helpers.zygote": "zygote/test_launch.py",
}


def product() -> list[Module]:
    """Return the modules that say something."""
    return [
        module
        for module in modules("execserver", "helpers", "sdk")
        if module.path.name != "__init__.py" or len(module.tree.body) > 1
    ]


@functools.cache
def imported_by_tests() -> dict[str, set[str]]:
    """Return the imports of each test file, by its dotted name."""
    return {
        module.name: {each.module for each in module.imports()}
        for module in modules("tests")
        if module.path.name.startswith("test_")
    }


def layer(module: Module) -> str:
    """Return the folder of tests that mirrors a module's layer: `tests.<layer>.`, or `tests.` itself."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    if package.partition(".")[0] in SDK:
        return "tests.sdk."
    name = package.split(".")[:2][-1]
    return "tests." if name in TOP else f"tests.{name}."


def own_tests(module: Module) -> list[str]:
    """Return the test files that have a module's name, or import it and are of its layer."""
    named = {f"{folder}test_{module.path.stem.lstrip('_')}" for folder in (layer(module), "tests.")}
    tests = imported_by_tests()
    importing = {test for test, imports in tests.items() if module.name in imports}
    return [*(named & tests.keys()), *(test for test in importing if test.startswith(layer(module)))]


def listed(module: Module) -> str | None:
    """Return the entry of COVERED_BY that is about a module."""
    fitting = [
        entry
        for entry in COVERED_BY
        if module.name == entry or (entry.endswith(".") and module.name.startswith(entry))
    ]
    return max(fitting, key=len, default=None)


@functools.cache
def orphans() -> list[Module]:
    """Return the modules without a test file of their own."""
    return [module for module in product() if not own_tests(module)]


def test_every_module_has_a_test_file() -> None:
    assert [module.name for module in orphans() if listed(module) is None] == []


def test_every_entry_is_needed() -> None:
    assert sorted({str(listed(module)) for module in orphans() if listed(module)}) == sorted(COVERED_BY)


def test_every_entry_names_a_file_of_tests() -> None:
    assert [path for path in COVERED_BY.values() if not (ROOT / "tests" / path).is_file()] == []
