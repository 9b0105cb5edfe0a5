"""What is started is preferred by the OOM killer; the starter stays as it was."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT

CODE = """
import ctypes, subprocess
from execserver.zygote.oom_score import OomScore
def own():
    return int(open("/proc/self/oom_score_adj").read())
before = own()
score = OomScore()
ctypes.CDLL(None).prctl(4, 0)  # not dumpable, as the zygote is
with score:
    seen = int(subprocess.run(["cat", "/proc/self/oom_score_adj"], capture_output=True).stdout)
print(seen == min(before + 500, 1000), own() == before)
"""


def test_a_child_has_500_more_and_the_starter_what_it_had() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
