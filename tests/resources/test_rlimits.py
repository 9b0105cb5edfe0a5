"""What a child takes on, in a request and applied."""

from __future__ import annotations

import subprocess
import sys

import pytest

from execserver.resources.rlimits import ChildLimits, decode_limits, encode_limits
from tests.support.source import ROOT


@pytest.mark.parametrize(
    "limits", [ChildLimits(), ChildLimits(5, 2**50, 16, True), ChildLimits(open_files=9)]
)
def test_limits_come_back_as_they_were(limits: ChildLimits) -> None:
    assert decode_limits(encode_limits(limits)) == limits


@pytest.mark.parametrize(
    "data", [b"", bytes(24), bytes(26), b"\xfe" + b"\xff" * 7 + bytes(17), bytes(24) + b"\2"]
)
def test_what_is_no_limits_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="limits"):
        decode_limits(data)


def test_a_process_takes_them_on_and_what_it_starts_has_them() -> None:
    code = """
import resource, subprocess
from execserver.resources.rlimits import ChildLimits
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 100))
ChildLimits(7, 8192, 200).apply()
kinds = resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE
print(*map(resource.getrlimit, kinds))
print(subprocess.run(["sh", "-c", "ulimit -t; ulimit -n"], capture_output=True, text=True).stdout.split())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "(7, 8) (8192, 8192) (100, 100)\n['7', '100']\n"
