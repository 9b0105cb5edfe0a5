"""Every kind of escape has its attacks, and a run in which a whole category was skipped fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from execserver.zygote.confinement import WITH_PLAN
from tests.sandbox.attacks.conftest import all_skipped
from tests.support.source import ROOT
from tests.support.ways import PLAYED, WAYS

HERE = Path(__file__).parent

# The kinds of escape a sandbox of this contract is tried with, and where.
KINDS = {
    "links of every kind": ["test_links", "test_file_calls"],
    "links swapped in a race": ["test_links", "test_file_calls"],
    "dots, also percent-encoded": ["test_links", "test_file_calls", "test_denied"],
    "hard links": ["test_links", "test_metadata", "test_denied"],
    "/proc: root, cwd, fd, environ, mem of itself, init, server": ["test_neighbours", "test_file_calls"],
    "descriptors": ["test_neighbours", "test_metadata", "test_denied"],
    "metadata names: write, replace, remove, rename, unmount, create, leftover": ["test_metadata"],
    "denied paths: direct, alias, rename, link, unmount": ["test_denied"],
    "capabilities, remounting, both mount APIs": ["test_privileges"],
    "nested namespaces, handles, devices, settings, set-user-id": ["test_privileges"],
    "ptrace, signals, shared memory, survivors, siblings": ["test_neighbours", "test_siblings"],
    "TCP, UDP, raw, netlink, vsock": ["test_network"],
    "abstract and pathname sockets, streams and datagrams": ["test_network"],
    "io_uring, foreign architectures": ["test_network"],
    "arguments and environment, modules in the folder": ["test_injection"],
    "FIFOs, devices, sockets as files; huge paths; malformed objects": ["test_file_calls"],
    "mixed policies, stale plans": ["test_file_calls"],
    "FIFOs that others obey": ["test_fifos"],
    "weaknesses of the reference": ["test_weaknesses"],
    "what is left behind": ["test_leaks"],
    "what is held: locks, leases, descriptors in flight, quotas": [
        "test_held",
        "test_in_flight",
        "test_quotas",
    ],
    "calls by which the kernel acts outside": ["test_calls"],
    "files that a start outside runs": ["test_program_files"],
    "the list of tokens, with its key": ["test_own_tokens"],
    "certificates that other processes trust": ["test_certificates"],
    "networks in which only a proxy is": ["test_managed_network"],
}
# Deny patterns are expanded by the server.
PATTERNS = {"glob": ROOT / "tests/e2e/test_sandboxed_files_denied.py"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_attacks(kind: str) -> None:
    texts = [(HERE / f"{module}.py").read_text() for module in KINDS[kind]]
    found = [len(re.findall(r"^def test_", text, re.MULTILINE)) for text in texts]
    assert min(found) >= 1
    assert sum(found) >= 2


def test_every_module_is_of_some_kind() -> None:
    modules = {path.stem for path in HERE.glob("test_*.py")} - {"test_categories"}
    assert modules == {module for modules in KINDS.values() for module in modules}


def test_deny_patterns_have_their_tests() -> None:
    for word, path in PATTERNS.items():
        assert f"deny_{word}(" in path.read_text()


def test_each_back_end_and_both_kinds_of_user_are_played() -> None:
    for ways in (WAYS, PLAYED):
        assert {way.back_end for way in ways} == set(WITH_PLAN)
        assert len({way.user for way in ways}) == 2
        assert {way.refusal for way in ways} == {"", "filter", "limit"}
        assert any(way.without for way in ways)


def test_a_category_that_was_skipped_as_a_whole_is_found() -> None:
    outcomes = {"a": {"passed", "skipped"}, "b": {"skipped"}, "c": {"failed"}, "d": set[str]()}
    assert all_skipped(outcomes) == ["b"]
