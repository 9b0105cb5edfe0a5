"""A client with a grant: whatever it asks for, and in whatever words, it gets what both allow."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import caveats
from execserver.runtime_paths import token_stores
from tests.e2e.sandbox_places import Place, place_for
from tests.support.accounts import own_cache
from tests.support.peer import Json, RemoteError
from tests.support.running import PATH, outcome
from tests.support.sandboxes import context, managed, read_only, rule, special
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("the reference has no grants")

DISABLED: Json = context({"type": "disabled"})
EXTERNAL: Json = context({"type": "external", "network": "enabled"})
EVERYTHING: Json = context(managed(special("root", "write"), network="enabled"))
UNRESTRICTED: Json = context(
    {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}
)
OPEN = [None, DISABLED, EXTERNAL, EVERYTHING, UNRESTRICTED]
CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('connected')"


@contextmanager
def granted(
    roots: tuple[str, ...] | None = None, read_only: bool = False, network: bool = True
) -> Iterator[Place]:
    """Yield a workspace and a connection with a token that grants this; `roots` are below the workspace's."""
    with place_for(None, os.geteuid()) as place:  # type: ignore[arg-type]
        home = place.folder / "home"
        home.mkdir()
        folders = None if roots is None else [os.fsencode(place.folder / root) for root in roots]
        token = store.issue(folder_of(home), caveats(None, folders, read_only, network), 0)
        env = {**base_environment(), **own_cache(), "HOME": str(home)}
        with ServerProcess(OURS, options=("--ws-auth", "execserver-token"), env=env) as server:
            peer = WsPeer.connect(server.url, headers=[f"Authorization: Bearer {token.text}"])
            peer.open_session()
            place.peer, place.server = peer, server
            yield place
            peer.close()


def folder_of(home: Path) -> bytes:
    return token_stores({b"HOME": os.fsencode(home)})[0]


@pytest.fixture(scope="module")
def confined() -> Iterator[Place]:
    """A holder who may write to the workspace and has no network."""
    with granted(roots=("ws",), network=False) as place:
        yield place


@pytest.fixture(scope="module")
def reader() -> Iterator[Place]:
    """A holder who may write nowhere."""
    with granted(read_only=True) as place:
        yield place


@pytest.fixture(scope="module")
def offline() -> Iterator[Place]:
    """A holder who only has no network."""
    with granted(network=False) as place:
        yield place


@pytest.fixture
def holder(request: pytest.FixtureRequest, confined: Place, reader: Place, offline: Place) -> Place:
    """The workspace of one of the three, by name."""
    return {"confined": confined, "reader": reader, "offline": offline}[request.param]


def run(place: Place, command: str | list[str], sandbox: Json, **members: Json) -> tuple[bytes, int | None]:
    given = {} if sandbox is None else {"sandbox": sandbox}
    place._count += 1
    name = f"p{place._count}"
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    params = {"processId": name, "argv": argv, "cwd": f"file://{place.ws}", "env": PATH, "tty": False}
    answer = place.peer.call("process/start", {**params, "pipeStdin": False, **given, **members})
    assert answer["sandboxType"] == "linuxSeccomp"
    found = outcome(place.peer, name)
    return found.stdout + found.stderr + found.pty, found.exit_code


def ask(place: Place, method: str, sandbox: Json = None, /, **params: Json) -> Json:
    """Return the result, or the code of the error."""
    given = {} if sandbox is None else {"sandbox": sandbox}
    try:
        return place.peer.call(method, {**params, **given})
    except RemoteError as error:
        return error.code


def uri(path: Path) -> str:
    return f"file://{path}"


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("sandbox", OPEN)
def test_a_process_writes_to_the_roots_only(confined: Place, sandbox: Json, tty: bool) -> None:
    said, code = run(confined, "echo a > in && cat ../other/f && echo b > ../other/out", sandbox, tty=tty)
    assert b"out" in said
    assert b"Read-only file system" in said
    assert code != 0
    assert (confined.ws / "in").read_text() == "a\n"
    assert not (confined.other / "out").exists()
    (confined.ws / "in").unlink()


@pytest.mark.parametrize("sandbox", OPEN)
def test_a_reader_writes_nowhere(reader: Place, sandbox: Json) -> None:
    said, _ = run(reader, "cat f; echo a > in; echo b > ../other/out; echo c > /tmp/../../x", sandbox)
    assert said.startswith(b"in")
    assert said.count(b"Read-only file system") == 3


def test_start_up_files_of_a_snapshot_run_within_the_grant(reader: Place) -> None:
    """The capture is a start like any other, though no request names it."""
    home = reader.folder / "start-up"
    home.mkdir()
    (home / ".bash_profile").write_text('echo x > "$HOME/written"; export FROM=profile\n')
    members = {
        "env": {"PATH": "/usr/bin:/bin", "HOME": str(home)},
        "shellSnapshot": {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}},
    }
    said, code = run(reader, ["/bin/bash", "-lc", "echo $FROM"], None, **members)
    assert (said, code) == (b"profile\n", 0)
    assert not (home / "written").exists()


def test_the_narrower_of_grant_and_request_wins(confined: Place) -> None:
    said, _ = run(confined, "echo a > in", read_only(confined.ws))
    assert b"Read-only file system" in said
    wide = context(
        managed(special("root", "read"), rule(confined.folder, "write"), network="enabled"), confined.ws
    )
    said, _ = run(confined, "echo a > in && rm in && echo kept; echo b > ../other/out", wide)
    assert said.startswith(b"kept\n")
    assert b"Read-only file system" in said
    other = context(managed(special("root", "read"), rule(confined.other, "write")), confined.ws)
    said, _ = run(confined, "echo a > in; echo b > ../other/out", other)
    assert said.count(b"Read-only file system") == 2
    hidden = context(managed(special("root", "write"), rule(confined.other, "deny")), confined.ws)
    said, _ = run(confined, "echo a > in && rm in && echo kept; cat ../other/f", hidden)
    assert said.startswith(b"kept\n")
    assert b"Permission denied" in said


@pytest.mark.parametrize("sandbox", OPEN)
@pytest.mark.parametrize("holder", ["confined", "offline"], indirect=True)
def test_no_process_has_the_network(holder: Place, sandbox: Json, free_python: str) -> None:
    place = holder
    with socket.create_server(("127.0.0.1", 0)) as listening:
        code = CONNECT.format(port=listening.getsockname()[1])
        said, exit_code = run(place, [free_python, "-I", "-S", "-c", code], sandbox)
    assert b"connected" not in said
    assert exit_code == 1


def test_who_has_the_network_keeps_it(reader: Place, free_python: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        code = CONNECT.format(port=listening.getsockname()[1])
        said, exit_code = run(reader, [free_python, "-I", "-S", "-c", code], None)
    assert (said, exit_code) == (b"connected\n", 0)


@pytest.fixture(scope="module")
def free_python() -> str:
    """An interpreter that a sandboxed process of this user can start."""
    from tests.support.ways import python_for

    return python_for(os.geteuid())


def test_a_managed_proxy_is_no_way_round_it(confined: Place, free_python: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        env = {**PATH, "HTTP_PROXY": f"http://127.0.0.1:{port}"}
        code = CONNECT.format(port=port)
        said, exit_code = run(
            confined, [free_python, "-I", "-S", "-c", code], EVERYTHING, env=env, enforceManagedNetwork=True
        )
    assert b"connected" not in said
    assert exit_code != 0


def test_http_requests_need_the_network(confined: Place, reader: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        request = {"requestId": "r", "method": "GET", "url": f"http://127.0.0.1:{port}/", "headers": []}
        with pytest.raises(RemoteError, match="needs the network, which is not granted"):
            confined.peer.call("http/request", request)
    assert ask(reader, "http/request", **request) == -32603  # allowed; nobody listens there any more


@pytest.mark.parametrize("sandbox", OPEN)
def test_file_calls_write_to_the_roots_only(confined: Place, sandbox: Json) -> None:
    inside, outside = confined.ws / "new", confined.other / "new"
    data = base64.b64encode(b"written").decode()
    for path, allowed in ((inside, True), (outside, False)):
        answers = [
            ask(confined, "fs/writeFile", sandbox, path=uri(path), dataBase64=data),
            ask(confined, "fs/createDirectory", sandbox, path=uri(path.parent / "d")),
            ask(
                *(confined, "fs/copy", sandbox),
                sourcePath=uri(confined.ws / "f"),
                destinationPath=uri(path.parent / "copy"),
                recursive=False,
            ),
            ask(confined, "fs/open", sandbox, handleId=f"h{path}", path=uri(path), mode="replace"),
            ask(confined, "fs/writeBlock", handleId=f"h{path}", offset=0, chunk=data),
        ]
        ask(confined, "fs/close", handleId=f"h{path}")
        assert [isinstance(answer, dict) for answer in answers] == [allowed] * len(answers)
    assert ask(confined, "fs/remove", sandbox, path=uri(confined.other / "f")) == -32603
    assert ask(confined, "fs/writeFile", sandbox, path=uri(confined.other / "f"), dataBase64=data) == -32603
    assert sorted(path.name for path in confined.other.iterdir()) == ["f"]
    assert (confined.other / "f").read_text() == "out"
    for name in ("new", "d", "copy"):
        assert ask(confined, "fs/remove", sandbox, path=uri(confined.ws / name)) == {}


@pytest.mark.parametrize("sandbox", OPEN)
def test_file_calls_of_a_reader_read(reader: Place, sandbox: Json) -> None:
    path = uri(reader.other / "f")
    assert ask(reader, "fs/readFile", sandbox, path=path) == {"dataBase64": base64.b64encode(b"out").decode()}
    assert ask(reader, "fs/getMetadata", sandbox, path=path)["size"] == 3
    assert ask(reader, "fs/canonicalize", sandbox, path=path) == {"path": path}
    assert ask(reader, "fs/readDirectory", sandbox, path=uri(reader.other))["entries"][0]["fileName"] == "f"
    assert ask(reader, "fs/writeFile", sandbox, path=uri(reader.ws / "f"), dataBase64="") == -32603
    assert (reader.ws / "f").read_text() == "in"


def test_a_link_in_a_root_leads_to_nothing_that_can_be_written(confined: Place) -> None:
    link = confined.ws / "link"
    said, _ = run(confined, "ln -s ../other link && echo b > link/out", None)
    assert b"Read-only file system" in said
    assert ask(confined, "fs/writeFile", path=uri(link / "out"), dataBase64="") == -32603
    link.unlink()


def test_a_token_narrowed_to_a_link_grants_nothing() -> None:
    """The holder made the link in its own root; by name it lies there, and it leads elsewhere."""
    with granted(roots=("ws/link",)) as place:
        (place.ws / "link").symlink_to(place.other)
        said, _ = run(place, "echo a > in; echo b > link/out; echo c > ../other/out", None)
        assert said.count(b"Read-only file system") == 3
        assert ask(place, "fs/writeFile", path=uri(place.ws / "link" / "out"), dataBase64="") == -32603
        assert sorted(path.name for path in place.other.iterdir()) == ["f"]


@pytest.mark.parametrize("sandbox", OPEN)
@pytest.mark.parametrize("holder", ["confined", "reader", "offline"], indirect=True)
def test_the_list_of_tokens_is_out_of_reach(holder: Place, sandbox: Json) -> None:
    place = holder
    file = Path(os.fsdecode(folder_of(place.folder / "home"))) / "tokens.json"
    before = file.read_bytes()
    said, code = run(
        place, f"cat {file}; ls {file.parent}; echo x > {file}; mv {file.parent} /tmp/x", sandbox
    )
    assert code != 0
    assert b"key" not in said
    for method in ("fs/readFile", "fs/getMetadata", "fs/remove", "fs/canonicalize"):
        assert isinstance(ask(place, method, sandbox, path=uri(file)), int), method
    assert isinstance(ask(place, "fs/readDirectory", sandbox, path=uri(file.parent)), int)
    assert isinstance(ask(place, "fs/open", sandbox, handleId="h", path=uri(file), mode="read"), int)
    into = {
        "sourcePath": uri(file.parent.parent),
        "destinationPath": uri(place.ws / "stolen"),
        "recursive": True,
    }
    ask(place, "fs/copy", sandbox, **into)
    assert not any(path.read_bytes() == before for path in place.ws.rglob("*") if path.is_file())
    assert file.read_bytes() == before


@pytest.mark.parametrize("holder", ["confined", "reader", "offline"], indirect=True)
def test_the_server_is_out_of_reach(holder: Place) -> None:
    place = holder
    assert place.server is not None
    pid = place.server.pid
    said, _ = run(place, f"kill -9 {pid}; cat /proc/{pid}/environ /proc/{pid}/mem | head -c 9", None)
    assert place.server.process.poll() is None
    assert b"No such" in said
    for name in (f"/proc/{pid}/environ", "/proc/self/environ", f"/proc/{pid}/mem"):
        assert isinstance(ask(place, "fs/readFile", path=f"file://{name}"), int)


def test_the_method_of_the_first_contract_is_no_way_round_it(confined: Place) -> None:
    script = "echo a > in; echo b > ../other/out; echo done"
    params = {"processId": "old", "argv": ["/bin/sh", "-c", script], "cwd": str(confined.ws), "env": PATH}
    answer = confined.peer.call("command/exec", {**params, "tty": False})
    assert (answer["processId"], answer["running"]) == ("old", True)
    assert confined.peer.notification("command/exec/exited")["processId"] == "old"
    assert (confined.ws / "in").read_text() == "a\n"
    assert not (confined.other / "out").exists()
    (confined.ws / "in").unlink()


def test_a_grant_without_limits_changes_nothing() -> None:
    with granted() as place:
        params = {"processId": "p", "argv": ["/bin/true"], "cwd": uri(place.ws), "env": PATH, "tty": False}
        assert place.peer.call("process/start", params)["sandboxType"] == "none"
        assert ask(place, "fs/writeFile", path=uri(place.other / "new"), dataBase64="") == {}
