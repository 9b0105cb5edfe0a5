"""Imports go down the layers only, and what must stay small imports nothing heavy.

Read from the source, and checked in the processes that are really started.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import execserver
from execserver import client
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.zygote.launch import start_zygote
from tests.support.source import ROOT, Import, Module, modules

PRODUCT = modules("execserver", "helpers")
SDK = modules("sdk")  # what it may import of the product: tests/sdk/test_closure.py

# The layers from the top; those of one line know nothing of each other.
LAYERS = [
    {"__main__"},
    {"dispatch"},
    {"cli"},
    {"app"},
    {"server"},
    {"upgrading"},
    {"relay", "remote", "mcp"},
    {"transports"},
    {"handlers"},
    {"services"},
    {"access"},
    {"survival"},
    {"audit", "core", "zygote", "wire", "http_client"},
    {"sandbox"},
    {"egress", "files", "resources", "rules"},
    {"handover", "protocol"},
]
# Used by all, and using none of them; `eventloop` with gevent, so only by what has that anyway.
LEAVES = {
    "cli_help",
    "eventloop",
    "exposition",
    "service_manager",
    "announcing",
    "arguments",
    "codex_options",
    "config_override",
    "leaving",
    "listen_url",
    "listening",
    "limit_options",
    "log",
    "name_services",
    "own_options",
    "own_process",
    "own_start",
    "private_file",
    "runtime_paths",
    "settings",
    "spans",
    "tuples",
    "unix_socket",
    "version",
    "watching",
    "wildcards",
}
RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
# What stands beside the layers may use these.
BESIDE = {
    "client": {"remote", "wire", "protocol", *LEAVES},
    "box": {"client", "files", "wire", "protocol", *LEAVES},
    "helpers": {
        *("zygote", "egress", "files", "resources", "rules", "sandbox", "protocol"),
        *("leaving", "runtime_paths"),
    },
    "verbs": {
        *("dispatch", "cli", "upgrading", "box", "client", "relay", "mcp", "access", "audit"),
        *("egress", "resources", "rules", "sandbox", "zygote", "handover", "protocol"),
        *LEAVES,
    },
    # Names that are loaded when first asked for.
    "": {"cli", "listen_url", "remote", "runtime_paths", "version"},
}

# Imported by processes that must start in no time: standard library only.
STDLIB_PARTS = {
    *("audit", "egress", "files", "resources", "rules", "sandbox", "zygote", "helpers", "dispatch"),
    *("__main__", ""),
    *LEAVES - {"eventloop"},
}
STDLIB_MODULES = {
    f"execserver.protocol.{name}"
    for name in (
        *("errors", "complaints", "syntax", "json_text", "base64", "paths", "url_hosts"),
        *("sandbox", "permissions", "sandbox_policy"),
    )
}
GEVENT_PARTS = {
    *("app", "server", "relay", "remote", "mcp", "transports", "services", "client", "box"),
    *("http_client", "eventloop", "upgrading"),
}
# What the layers would allow, and yet is not wanted: the relay and remote mode serve no process and no file,
# so they use nothing that does; the Python client runs in programs that are no server at all.
NOT_WANTED = {
    "relay": {"transports", "handlers", "services", "core"},
    "remote": {"services", "core"},
    "http_client": {"core", "zygote", "sandbox"},
}
SERVER_PARTS = {"transports", "handlers", "services", "core", "zygote", "sandbox", "files", "rules", "egress"}
THIRD_PARTY = {
    *("gevent", "greenlet", "zope", "msgspec", "websockets", "pybase64", "h11", "docopt"),
    *("cryptography", "starlark", "yaml"),
}
HELPERS = "execserver._helpers"  # the name of `helpers/` in every process
FORBIDDEN = ("gevent.monkey", "gevent.subprocess", "gevent.pywsgi", "gevent.os.fork_and_watch")
HEAVY = {"dataclasses", "logging", "subprocess", "inspect", "json", "pathlib", "argparse", "asyncio", "ssl"}


def part_of(module: str) -> str | None:
    """Return the part of the product a module belongs to (`""`: the package itself), or None."""
    names = module.split(".")
    if names[0] == "helpers" or names[:2] == HELPERS.split("."):
        return "helpers"
    if names[0] != "execserver":
        return None
    part = names[1] if len(names) > 1 else ""
    return part if part in RANKS or part in LEAVES or part in BESIDE else ""


def allowed(part: str) -> set[str]:
    """Return the parts that a part may import."""
    if part in BESIDE:
        return BESIDE[part]
    if part in LEAVES:
        return LEAVES
    lower = set().union(*LAYERS[RANKS[part] + 1 :])
    return (lower | LEAVES | ({"helpers"} if part == "dispatch" else set())) - NOT_WANTED.get(part, set())


def told(module: Module, found: Import) -> str:
    return f"{module.path.relative_to(ROOT)}:{found.line} imports {found.module}"


def test_every_module_belongs_to_a_layer() -> None:
    homeless = [
        module.name
        for module in PRODUCT
        if part_of(module.name) == "" and module.name not in ("execserver", "helpers")
    ]
    assert homeless == []


def test_imports_go_down_only() -> None:
    wrong = []
    for module in PRODUCT:
        part = part_of(module.name)
        assert part is not None
        for found in module.imports():
            target = part_of(found.module)
            if target in (None, "", part) or target in allowed(part):
                continue
            wrong.append(told(module, found))
    assert wrong == []


def test_the_client_reaches_nothing_of_the_server() -> None:
    """Not by way of remote mode either, and not late inside a function."""
    imported = {module.name: {found.module for found in module.imports()} for module in PRODUCT}
    reached = {name for name in imported if part_of(name) == "client"}
    waiting = list(reached)
    while waiting:
        found = {name for name in imported[waiting.pop()] if name in imported}
        waiting += found - reached
        reached |= found
    assert {name for name in reached if part_of(name) in SERVER_PARTS} == set()


def test_a_package_loads_nothing_by_itself() -> None:
    """Its public names are loaded when they are asked for, and nobody inside asks for them there."""
    loading = [
        f"{module.path.relative_to(ROOT)}:{statement.lineno}"
        for module in PRODUCT
        if module.path.name == "__init__.py"
        for statement in module.tree.body
        if isinstance(statement, ast.Import)
        or (isinstance(statement, ast.ImportFrom) and statement.module != "__future__")
    ]
    assert loading == []
    wrong = [
        told(module, found)
        for module in PRODUCT
        for package in (execserver, client)
        if module.name.startswith(package.__name__)
        for found in module.imports()
        if found.module in {f"{package.__name__}.{name}" for name in package.__all__}
    ]
    assert wrong == []


def relative_imports(module: Module) -> list[int]:
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)]
    return [node.lineno for node in nodes if node.level]


def test_only_helpers_import_each_other_relatively() -> None:
    """They are `execserver._helpers` in a wheel, and must not take another distribution's `helpers`."""
    others = [module for module in [*PRODUCT, *SDK] if not module.name.startswith("helpers")]
    assert {module.name: relative_imports(module) for module in others if relative_imports(module)} == {}
    absolute = [
        told(module, found)
        for module in PRODUCT
        for found in module.imports()
        if part_of(found.module) == "helpers" and found.line not in relative_imports(module)
    ]
    assert absolute == []


def test_gevent_is_a_rim() -> None:
    wrong = [
        told(module, found)
        for module in PRODUCT
        if part_of(module.name) not in GEVENT_PARTS
        for found in module.imports()
        if found.module.split(".")[0] in ("gevent", "greenlet")
    ]
    assert wrong == []


def test_nothing_is_monkey_patched() -> None:
    wrong = [
        told(module, found)
        for module in PRODUCT
        for found in module.imports()
        if found.module.startswith(FORBIDDEN)
    ]
    assert wrong == []


def test_small_modules_use_the_standard_library_only() -> None:
    wrong = [
        told(module, found)
        for module in PRODUCT
        if part_of(module.name) in STDLIB_PARTS or module.name in STDLIB_MODULES
        for found in module.imports()
        if found.module.split(".")[0] in THIRD_PARTY and not found.optional
    ]
    assert wrong == []


def small_modules() -> list[str]:
    return [
        module.name
        for module in PRODUCT
        if (part_of(module.name) in STDLIB_PARTS or module.name in STDLIB_MODULES)
        and not module.name.endswith("__main__")
    ]


def test_small_modules_load_where_no_package_is_installed() -> None:
    lines = [
        f"import sys; sys.path.insert(0, {str(ROOT)!r})",
        *(f"import {name}" for name in small_modules()),
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_itself_costs_nothing() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); old = set(sys.modules); import execserver; "
    code += "print(sorted(set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "['__future__', 'execserver']\n"


def test_the_started_zygote_has_loaded_nothing_heavy(capfd: pytest.CaptureFixture[str]) -> None:
    interpreter, *rest = ExecServerRuntimePaths.detect().zygote_command()
    zygote = start_zygote([interpreter, b"-X", b"importtime", *rest], 1024)
    os.close(zygote.sock_fd)
    _, status = os.waitpid(zygote.pid, 0)
    loaded = {
        line.rpartition("|")[2].strip()
        for line in capfd.readouterr().err.splitlines()
        if line.startswith("import time:")
    }
    assert os.waitstatus_to_exitcode(status) == 0
    assert "execserver.zygote.loop" in loaded
    assert {name for name in loaded if name.split(".")[0] in THIRD_PARTY | HEAVY} == set()


FILE_REQUESTS = [
    '{"operation":"fs/readFile","params":{"path":"/dev/null/x"}}',
    '{"operation":"fs/writeFile","params":{"path":"/dev/null","dataBase64":"eA=="}}',
    '{"operation":"fs/createDirectory","params":{"path":"/"}}',
    '{"operation":"fs/getMetadata","params":{"path":"/"}}',
    '{"operation":"fs/canonicalize","params":{"path":"file:///%2e/"}}',
    '{"operation":"fs/readDirectory","params":{"path":"/"}}',
    '{"operation":"fs/remove","params":{"path":"/dev/null/x"}}',
    '{"operation":"fs/copy","params":{"sourcePath":"/","destinationPath":"/","recursive":true}}',
    '{"operation":"capabilityRoots/discoverV1","params":{"roots":[{"id":"x","path":"file:///dev/null"}]}}',
    '{"operation":"capabilities/loadDiscoveries","params":{"locations":[{"root":"file:///dev"}],"warnings":[]}}',
]


@pytest.mark.parametrize("request_text", FILE_REQUESTS)
def test_the_file_helper_has_loaded_nothing_heavy(request_text: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import execserver.dispatch\n"
        "from execserver._helpers.codex_fs import main\n"  # the dispatch would end this process at once
        "status = main(); print(*sys.modules, file=sys.stderr); sys.exit(status)"
    )
    # With `site`, so that the installed packages could be loaded.
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        input=request_text,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert done.stdout.startswith('{"status":')
    assert "execserver._helpers.codex_fs" in loaded
    # pybase64 is for content only, and weighs as much as binascii.
    heavy = (THIRD_PARTY | HEAVY | {"socket"}) - {"pybase64"}
    assert {name for name in loaded if name.split(".")[0] in heavy} == set()


def test_the_url_is_printed_before_the_server_is_loaded() -> None:
    """A client may be waiting for that line; loading gevent and msgspec takes longer than all before it."""
    script = str(Path(ROOT, "execserver", "__main__.py"))
    command = [sys.executable, "-X", "importtime", "-I", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0) as server:
        assert server.stdout is not None
        before = []
        for line in server.stdout:
            if b"ws://127.0.0.1:" in line:
                break
            before.append(line.decode().rpartition("|")[2].strip())
        server.terminate()
        server.stdout.read()
    assert "execserver.app" in before
    ours = before[before.index("execserver.dispatch") :]  # what comes earlier is the interpreter's
    late = {"typing", "re", "enum", "collections", "contextlib", "functools", "socket", "signal", "struct"}
    assert {name for name in ours if name.split(".")[0] in late | HEAVY} == set()
    assert {name for name in before if name.split(".")[0] in THIRD_PARTY} == set()


def test_a_server_on_stdio_loads_nothing_of_websockets() -> None:
    """It serves one client that waits for its start, as the SDK's private servers do."""
    script = str(Path(ROOT, "execserver", "__main__.py"))
    request = b'{"id":1,"method":"initialize","params":{"clientName":"test"}}\n'
    command = [sys.executable, "-X", "importtime", "-I", script, "--listen", "stdio"]
    done = subprocess.run(command, input=request, capture_output=True, timeout=30, check=True)
    assert b'"sessionId"' in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "execserver.transports.stdio" in loaded
    not_needed = {"websockets", "h11", "http", "ssl", "hashlib", "asyncio", "subprocess"}
    assert {name for name in loaded if name.split(".")[0] in not_needed} == set()
