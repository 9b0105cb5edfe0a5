"""`policyContext`: where it is given, it alone says what project roots are (wire contract, section 8.7).

What is asked and answered is as recorded from 0.169.0.
"""

from __future__ import annotations

import pytest

from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import READ_ONLY, Files
from tests.support.peer import Json, RemoteError
from tests.support.sandboxes import context, deny_glob, managed, special

pytestmark = pytest.mark.ours_only("0.142.0 does not know the member")

PERMISSIONS = managed(special("root", "read"), special("project_roots", "write"))
PROBE = "for d in . sub ../other; do touch $d/m 2>/dev/null && echo -n $d,; rm -f $d/m; done; true"


@pytest.fixture
def roots(place: Place) -> Place:
    """A workspace with a folder in it."""
    place.make("ws/sub/y", "1")
    return place


def uris(place: Place, *names: str) -> list[Json]:
    return [f"file://{place.folder / name}" for name in names]


def written(place: Place, policy: Json, **members: Json) -> str:
    """Return where a command may write."""
    sandbox = context(PERMISSIONS, place.ws, workspaceRoots=uris(place, "ws"), policyContext=policy)
    found = place.run(PROBE, {**sandbox, **members})
    assert found.exit_code == 0
    return found.stdout.decode()


def test_without_one_the_workspace_roots_count(roots: Place) -> None:
    assert written(roots, None) == ".,sub,"


def test_one_without_roots_means_none(roots: Place) -> None:
    [sub] = uris(roots, "ws/sub")
    assert written(roots, {}) == ""
    assert written(roots, {"cwd": sub}) == ""
    assert written(roots, {"cwd": sub, "workspaceRoots": []}) == ""


def test_its_roots_count(roots: Place) -> None:
    [sub] = uris(roots, "ws/sub")
    assert written(roots, {"workspaceRoots": [sub]}) == "sub,"
    assert written(roots, {"cwd": sub, "workspaceRoots": uris(roots, "ws")}) == ".,sub,"
    assert written(roots, {"workspaceRoots": uris(roots, "ws/sub", "other")}) == "sub,../other,"


def test_the_outer_folders_may_be_missing_then(roots: Place) -> None:
    policy = {"cwd": uris(roots, "ws/sub")[0], "workspaceRoots": uris(roots, "ws/sub")}
    assert written(roots, policy, cwd=None, workspaceRoots=[]) == "sub,"


def test_each_request_has_its_own(roots: Place) -> None:
    for _ in range(3):
        assert written(roots, {"workspaceRoots": uris(roots, "ws/sub")}) == "sub,"
        assert written(roots, {}) == ""
        assert written(roots, None) == ".,sub,"


def test_patterns_are_about_its_folder(roots: Place) -> None:
    roots.make("ws/sub/key", "s")
    rules = managed(special("root", "read"), deny_glob("key"))
    sandbox = context(rules, roots.ws, policyContext={"cwd": uris(roots, "ws/sub")[0]})
    assert roots.run("cat sub/key", sandbox).exit_code == 1
    assert roots.run("cat sub/key", context(rules, roots.ws)).stdout == b"s"


def test_file_requests_follow_it_too(roots: Place) -> None:
    usual = context(PERMISSIONS, roots.ws, workspaceRoots=uris(roots, "ws"))
    of_sub = {"policyContext": {"workspaceRoots": uris(roots, "ws/sub")}}
    for sandbox, answers in (
        (usual, [{}, {}]),
        ({**usual, "policyContext": {}}, [READ_ONLY, READ_ONLY]),
        ({**usual, **of_sub}, [READ_ONLY, {}]),
        ({**context(PERMISSIONS), **of_sub}, [READ_ONLY, {}]),
    ):
        files = Files(roots, sandbox)
        assert [files.write(roots.ws / "n"), files.write(roots.ws / "sub" / "n")] == answers


@pytest.mark.parametrize("policy", [{"cwd": "file://h/x"}, {"workspaceRoots": ["file://h/x"]}])
def test_folders_of_another_kind_of_host_are_refused(roots: Place, policy: Json) -> None:
    sandbox = context(PERMISSIONS, roots.ws, policyContext=policy)
    with pytest.raises(RemoteError) as refused:
        roots.run("true", sandbox)
    text = "is not valid on this exec-server host: 'file://h/x' is invalid on 'linux'"
    assert (refused.value.code, refused.value.message.endswith(text)) == (-32602, True)
    code, message = Files(roots, sandbox).ask("fs/readFile", roots.ws / "f")
    assert (code, message.endswith("'file://h/x' is invalid on 'linux'")) == (-32600, True)
