from __future__ import annotations

from typing import Any

import pytest

from execserver.protocol.errors import InvalidParams, InvalidRequest, RpcError
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.policy.request_check import (
    check_process_cwd,
    file_request_needs_sandbox,
    needs_cwd,
    process_request_needs_sandbox,
    restricts_files,
    restricts_network,
)

HERE, FOREIGN = PathUri.parse("/x"), PathUri.parse("file://h/path")
ROOT_WRITE = ("root", "write")


def rule(place: str, access: str) -> dict[str, Any]:
    """Return a rule: `/path`, `*glob`, `kind` or `kind/subpath`."""
    path: dict[str, Any]
    if place.startswith(("/", "file:")):
        path = {"type": "path", "path": place}
    elif "*" in place:
        path = {"type": "glob_pattern", "pattern": place.removeprefix("glob:")}
    else:
        kind, _, subpath = place.partition("/")
        path = {"type": "special", "value": {"kind": kind, "path": "p", "subpath": subpath or None}}
    return {"path": path, "access": access}


def restricted(*rules: tuple[str, str], network: str = "enabled") -> PermissionProfile:
    files = {"type": "restricted", "entries": [rule(*words) for words in rules]}
    return PermissionProfile.from_json({"type": "managed", "file_system": files, "network": network})


def context(
    *rules: tuple[str, str], cwd: str | None = None, roots: tuple[str, ...] = ()
) -> FileSystemSandboxContext:
    paths = tuple(PathUri.parse(root) for root in roots)
    return FileSystemSandboxContext(restricted(*rules), (cwd and PathUri.parse(cwd)) or None, paths)


def refusal(error: type[RpcError], call: Any, *arguments: Any) -> str:
    with pytest.raises(error) as caught:
        call(*arguments)
    return caught.value.message


@pytest.mark.parametrize("profile", [{"type": "disabled"}, {"type": "external", "network": "restricted"}])
def test_disabled_and_external_profiles_restrict_no_files(profile: dict[str, str]) -> None:
    assert not restricts_files(PermissionProfile.from_json(profile))


def test_unrestricted_files_are_not_restricted() -> None:
    assert not restricts_files(PermissionProfile("managed", False))


@pytest.mark.parametrize("rules", [(), (("root", "read"),), (("/", "write"),), (("project_roots", "write"),)])
def test_without_a_write_rule_for_the_root_files_are_restricted(rules: tuple[tuple[str, str], ...]) -> None:
    assert restricts_files(restricted(*rules))


# Checked against the reference server with every pair of these rules.
@pytest.mark.parametrize(
    "more",
    [
        *(
            ("root", "read"),
            ("minimal", "read"),
            ("minimal", "deny"),
            ("unknown", "deny"),
            ("unknown", "read"),
        ),
        *(("tmpdir", "write"), ("/x", "write"), ("glob:/x/*", "write"), ("project_roots/a", "write")),
    ],
)
def test_some_rules_leave_full_write_access_full(more: tuple[str, str]) -> None:
    assert not restricts_files(restricted(ROOT_WRITE, more))
    assert not restricts_files(restricted(more, ROOT_WRITE))


@pytest.mark.parametrize(
    "more",
    [
        *(
            ("root", "deny"),
            ("tmpdir", "read"),
            ("slash_tmp", "read"),
            ("project_roots", "read"),
            ("/x", "read"),
        ),
        *(
            ("tmpdir", "deny"),
            ("/x", "deny"),
            ("project_roots/a", "read"),
            ("glob:/x/*", "read"),
            ("glob:*", "deny"),
        ),
        ("file://h/x", "write"),
    ],
)
def test_other_rules_narrow_it(more: tuple[str, str]) -> None:
    assert restricts_files(restricted(ROOT_WRITE, more))
    assert restricts_files(restricted(more, ROOT_WRITE))


def test_a_write_rule_overrides_a_read_rule_for_the_same_place_but_no_denial() -> None:
    assert not restricts_files(restricted(ROOT_WRITE, ("/x", "read"), ("/x", "write")))
    assert not restricts_files(restricted(ROOT_WRITE, ("tmpdir", "write"), ("tmpdir", "read")))
    assert restricts_files(restricted(ROOT_WRITE, ("/x", "read"), ("/y", "write")))
    assert restricts_files(restricted(ROOT_WRITE, ("/x", "deny"), ("/x", "write")))
    assert restricts_files(restricted(ROOT_WRITE, ("project_roots/a", "read"), ("project_roots", "write")))


def test_the_network_counts_as_restricted_unless_enabled() -> None:
    assert restricts_network(PermissionProfile.from_json({}))
    assert restricts_network(restricted(network="restricted"))
    assert not restricts_network(restricted())
    assert not restricts_network(PermissionProfile.from_json({"type": "disabled"}))


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        ((("root", "read"),), False),
        ((("glob:/a/*", "deny"),), False),
        ((("glob:*.env", "deny"),), True),
        ((("project_roots/a", "read"),), True),
    ],
)
def test_project_roots_and_relative_patterns_need_a_directory(rules: Any, needed: bool) -> None:
    assert needs_cwd(restricted(*rules)) is needed


def test_a_file_request_without_context_only_has_its_paths_checked() -> None:
    assert file_request_needs_sandbox(None, HERE, HERE) is False
    assert refusal(InvalidRequest, file_request_needs_sandbox, None, HERE, FOREIGN) == (
        "'file://h/path' is invalid on 'linux'"
    )


def test_a_context_that_restricts_nothing_is_not_looked_at() -> None:
    free = FileSystemSandboxContext(PermissionProfile("disabled", True), FOREIGN, (FOREIGN,))
    assert file_request_needs_sandbox(free, HERE) is False


def test_a_restricting_context_needs_a_sandbox() -> None:
    assert file_request_needs_sandbox(context(("root", "read")), HERE) is True
    assert file_request_needs_sandbox(context(("project_roots", "write"), cwd="/x"), HERE) is True


@pytest.mark.parametrize(
    ("restricting", "message"),
    [
        (
            context(
                ("project_roots", "read"), ("file://h/p", "read"), cwd="file://h/c", roots=("file://h/r",)
            ),
            "'file://h/c' is invalid on 'linux'",
        ),
        (
            context(("project_roots", "read"), ("file://h/p", "read"), roots=("file://h/r",)),
            "file system sandbox context with dynamic permissions requires cwd",
        ),
        (
            context(("file://h/p", "read"), roots=("file://h/r",)),
            "invalid sandbox permission path URI: 'file://h/p' is invalid on 'linux'",
        ),
        (
            context(("root", "read"), roots=("/a", "file://h/r")),
            "file system sandbox workspace root is not native to this exec-server host: "
            "'file://h/r' is invalid on 'linux'",
        ),
    ],
)
def test_the_parts_of_a_file_context_are_checked_in_order(
    restricting: FileSystemSandboxContext, message: str
) -> None:
    assert refusal(InvalidRequest, file_request_needs_sandbox, restricting, HERE) == message
    assert refusal(InvalidRequest, file_request_needs_sandbox, restricting, FOREIGN) == (
        "'file://h/path' is invalid on 'linux'"
    )


def test_a_policy_of_the_april_contract_needs_no_directory() -> None:
    policy = {"sandboxPolicy": {"type": "workspace-write"}, "windowsSandboxLevel": "disabled"}
    assert file_request_needs_sandbox(FileSystemSandboxContext.from_json(policy), HERE) is True


@pytest.mark.parametrize(
    ("profile", "needed"),
    [
        ({"type": "disabled"}, False),
        ({"type": "external", "network": "enabled"}, False),
        ({"type": "external", "network": "restricted"}, True),
        ({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}, False),
        ({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"}, True),
        ({}, True),
        ({"network": {"enabled": True}}, True),
    ],
)
def test_a_process_needs_a_sandbox_for_files_or_network(profile: object, needed: bool) -> None:
    permissions = PermissionProfile.from_json(profile)
    assert process_request_needs_sandbox(FileSystemSandboxContext(permissions)) is needed


def test_a_managed_network_needs_a_sandbox() -> None:
    free = FileSystemSandboxContext(PermissionProfile("disabled", True))
    assert process_request_needs_sandbox(free, enforce_managed_network=True) is True


@pytest.mark.parametrize(
    ("restricting", "message"),
    [
        (
            context(("file://h/p", "read"), cwd="file://h/c", roots=("file://h/r",)),
            "invalid sandbox permission path URI: 'file://h/p' is invalid on 'linux'",
        ),
        (
            context(cwd="file://h/c", roots=("file://h/r",)),
            "sandbox cwd URI `file://h/c` is not valid on this exec-server host: "
            "'file://h/c' is invalid on 'linux'",
        ),
        (
            context(cwd="/", roots=("file://h/r",)),
            "sandbox workspace root URI `file://h/r` is not valid on this exec-server host: "
            "'file://h/r' is invalid on 'linux'",
        ),
    ],
)
def test_the_parts_of_a_process_context_are_checked_in_order(
    restricting: FileSystemSandboxContext, message: str
) -> None:
    assert refusal(InvalidParams, process_request_needs_sandbox, restricting) == message


def test_the_directory_of_a_process_must_be_of_this_host() -> None:
    assert check_process_cwd(HERE, sandboxed=True) == b"/x"
    assert refusal(InvalidParams, check_process_cwd, FOREIGN, False) == (
        "cwd URI `file://h/path` is not valid on this exec-server host: 'file://h/path' is invalid on 'linux'"
    )
    assert refusal(InvalidParams, check_process_cwd, FOREIGN, True) == (
        "failed to prepare process sandbox: command cwd URI `file://h/path` is not valid on this host: "
        "'file://h/path' is invalid on 'linux'"
    )
