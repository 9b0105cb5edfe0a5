"""What the SDK takes from `execserver` is free of gevent and of I/O, so that it can be carried along."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.source import ROOT
from tools.sdk.closure import closure, read, sources
from tools.sdk.vendoring import PACKAGES

OWN = [source for package in PACKAGES for source in sources(ROOT, package)]
REACHED = closure(ROOT, OWN)
# The SDK and its wheel know nothing of these.
NEVER = {"gevent", "greenlet", "zope", "h11", "docopt", "starlark", "yaml"}
# Who imports one of these does I/O, waits, or runs something besides its caller.
INPUT_OUTPUT = {
    *("asyncio", "concurrent", "fcntl", "http", "multiprocessing", "pty", "resource", "select", "selectors"),
    *("shutil", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "termios", "threading"),
}
# Modules that touch the machine all the same, each with why the SDK may have it.
ALLOWED = {
    "execserver.box.book": "the boxes file, of which the SDK only reads: one small file of the person's",
    "execserver.client.carriers.children": "plain system calls around a child, which wait for nothing",
    "execserver.client.options": "the type of a TLS context, which only a type checker loads",
    "execserver.http_client.trust": "it reads the certificates that are trusted, once for a client",
    "execserver.remote.answers": "the standard library's names of HTTP's statuses",
    "execserver.client.carriers.tuning": "the options of a socket that somebody else opened",
    "execserver.protocol.url_hosts": "it reads addresses with the C library's own functions, no socket",
}


def tops(name: str) -> set[str]:
    return {module.partition(".")[0] for module, _ in REACHED[name].imports()}


@pytest.mark.parametrize("name", [name for name, source in REACHED.items() if not source.is_lazy])
def test_a_shared_module_does_no_input_or_output(name: str) -> None:
    assert tops(name) & NEVER == set()
    if name in ALLOWED:
        assert tops(name) & INPUT_OUTPUT
    else:
        assert tops(name) & INPUT_OUTPUT == set()


def test_every_exception_is_needed() -> None:
    assert ALLOWED.keys() - REACHED.keys() == set()


def test_nothing_is_taken_from_a_package_that_loads_on_demand() -> None:
    """The wheel carries an empty module in its place."""
    lazy = {name for name, source in REACHED.items() if source.is_lazy}
    every = [*OWN, *(source for source in REACHED.values() if not source.is_lazy)]
    wrong = [
        f"{source.name}:{line} {name}"
        for source in every
        for name, line in source.imports()
        if name.rpartition(".")[0] in lazy and name not in REACHED
    ]
    assert wrong == []


def test_the_sdk_itself_uses_nothing_of_gevents() -> None:
    wrong = [
        f"{source.name}:{line} {name}"
        for source in OWN
        for name, line in source.imports()
        if name.partition(".")[0] in NEVER
    ]
    assert wrong == []


def test_the_server_knows_nothing_of_the_sdk() -> None:
    packages = {path.name for path in (ROOT / "sdk").iterdir() if path.is_dir()}
    files = [path for top in ("execserver", "helpers") for path in (ROOT / top).rglob("*.py")]
    named = [path for path in files if any(package in path.read_text() for package in packages)]
    wrong = [
        f"{name}:{line}"
        for path in named
        for name, line in read(path, ROOT).imports()
        if name.partition(".")[0] in packages
    ]
    assert wrong == []


def test_importing_the_sdk_loads_no_gevent_and_no_cryptography() -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]; import execserver_client; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(ROOT), str(ROOT / "sdk")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert {name.partition(".")[0] for name in done.stdout.split()} & {*NEVER, "cryptography"} == set()


def test_what_a_private_server_needs_loads_no_websockets() -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]; from execserver_client.sync import Box, connect;"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code} print('websockets' in sys.modules)", ROOT, ROOT / "sdk"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "False\n"


def test_a_lazy_package_hides_what_it_could_load() -> None:
    reached = closure(ROOT, [read(ROOT / "tools" / "sdk" / "closure.py", ROOT)])
    assert reached == {}
    lazy = closure(ROOT, [read(ROOT / "execserver" / "client" / "carriers" / "urls.py", ROOT)])
    assert [*lazy] == ["execserver", "execserver.client", "execserver.client.errors"] + [
        name for name in lazy if name.startswith("execserver.protocol")
    ]
    assert lazy["execserver.client"].is_lazy
