"""What stands in for a module in the built file does for those who import it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT
from tools.freeze.contents import replaced_modules

_USE = """
import sys, types
for name in ("zope", "zope.interface"):
    sys.modules[name] = types.ModuleType(name)
exec(sys.argv[1], vars(sys.modules["zope.interface"]))
import gevent, gevent.ssl, gevent.socket, gevent.lock, gevent.queue, gevent.fileobject, gevent.threadpool
print(gevent.get_hub().threadpool.apply(type, (gevent.get_hub().loop,)).__module__)
"""


def test_gevent_takes_what_stands_in_for_its_interfaces() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _USE, replaced_modules(ROOT)["zope.interface"]],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "gevent.libev.corecext\n"  # of its loops the only one that the built file has
