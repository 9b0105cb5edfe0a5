"""The lanes of all methods: each has been thought of, and effects are alone in theirs."""

from __future__ import annotations

from types import SimpleNamespace

from execserver.handlers.lanes import AT_ONCE, FILES, Lane, lane_of
from execserver.protocol import methods

OF_ITS_OWN = {"initialize", "command/exec", "command/exec/write", "command/exec/terminate"}
OF_ITS_OWN |= {"session/keep", "session/end", "process/watch"}  # they concern more than one process
LOOKS = {"readFile", "readBlock", "getMetadata", "canonicalize", "readDirectory", "walk", "getVersion"}
LOOKS |= {"hash", "glob", "search", "archive", "list", "readMany"}


def test_every_method_has_a_lane_or_goes_alone_on_purpose() -> None:
    params = SimpleNamespace(process_id="p", port_id="q")
    without = {name for name, method in methods.METHODS.items() if lane_of(method, params) is None}
    assert without == OF_ITS_OWN | AT_ONCE


def test_requests_for_one_process_share_its_lane() -> None:
    lanes = {
        lane_of(method, SimpleNamespace(process_id="p"))
        for name, method in methods.METHODS.items()
        if name.startswith("process/") and name not in AT_ONCE | OF_ITS_OWN
    }
    assert lanes == {Lane(("process", "p"), alone=True)}


def test_requests_for_one_forwarded_port_share_its_lane() -> None:
    lanes = {
        lane_of(method, SimpleNamespace(port_id="q"))
        for name, method in methods.METHODS.items()
        if name.startswith("port/") and name not in AT_ONCE
    }
    assert lanes == {Lane(("port", "q"), alone=True)}


def test_only_what_looks_at_files_is_shared() -> None:
    for name, method in methods.METHODS.items():
        if name.startswith("fs/"):
            alone = name.removeprefix("fs/") not in LOOKS
            assert lane_of(method, None) == Lane(FILES, alone), name
