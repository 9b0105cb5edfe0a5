"""What stands in for a module in the built file does for those who import it."""

from __future__ import annotations

import dataclasses
import inspect
import secrets
import subprocess
import sys

import pytest

from tests.support.source import ROOT, modules
from tools.freeze.contents import LEFT_OUT, LIGHTENED, is_for_helpers, lightened, replaced_modules

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


_STAND_IN = """
import sys, types
for name, text in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[name] = types.ModuleType(name)
    exec(text, vars(sys.modules[name]))
"""
_SHOW = """
import datetime, inspect, io, linecache, pickle, traceback, uuid
import gevent.util, msgspec
gevent.get_hub().exception_stream = failure = io.StringIO()
gevent.spawn(int, "no number").join()
print("invalid literal for int()" in failure.getvalue(), ": int('no number')>" in failure.getvalue())
class Point(msgspec.Struct):
    id: uuid.UUID
    at: datetime.datetime
    x: int = 0
text = b'{"id":"12345678-1234-5678-1234-567812345678","at":"2026-01-02T03:04:05Z"}'
print(msgspec.json.decode(text, type=Point))
print(datetime.datetime.strptime("2026-01-02", "%Y-%m-%d").replace(tzinfo=datetime.UTC), datetime.__doc__)
print(pickle.loads(pickle.dumps(datetime.timedelta(1))), datetime.date.max, datetime.MAXYEAR)
print(linecache.getline("/no/such/file.py", 1) == "", inspect.signature(Point))
try:
    raise ExceptionGroup("both", [ValueError("one\\n\\n  indented"), ExceptionGroup("more", [KeyError(2)])])
except ExceptionGroup:
    print(traceback.format_exc())
"""


def test_what_other_stand_ins_leave_out_is_missed_by_nobody() -> None:
    names = (
        "platform",
        "pprint",
        "textwrap",
        "tokenize",
        "msgspec.inspect",
        "msgspec._json_schema",
        "datetime",
    )
    texts = replaced_modules(ROOT)
    words = [word for name in names for word in (name, texts[name])]
    without = _output([sys.executable, "-c", f"{_STAND_IN}\n{_SHOW}", *words])
    # The same number of lines before it, since tracebacks have them.
    assert without == _output([sys.executable, "-c", "\n" * _STAND_IN.count("\n") + f"\n{_SHOW}"])


_USE_LIGHTENED = """
import dataclasses, secrets
@dataclasses.dataclass(order=True, frozen=True)
class Point:
    x: int
    y: list[int] = dataclasses.field(default_factory=list)
print(Point(1), Point(1) == Point(1), Point(1) < Point(2), hash(Point(1, ())) == hash(Point(1, ())))
print(dataclasses.replace(Point(1), x=2), dataclasses.asdict(Point(3)), dataclasses.fields(Point)[1].name)
print(secrets.compare_digest("a", "a"), secrets.compare_digest(b"a", b"b"), secrets.randbelow(1))
print(len(secrets.token_bytes()), len(secrets.token_hex(4)), len(secrets.token_urlsafe(3)))
"""


def test_lightened_modules_do_what_they_did_and_load_less() -> None:
    texts = [
        word
        for module in (dataclasses, secrets)
        for word in (module.__name__, lightened(module.__name__, inspect.getsource(module)))
    ]
    show = "print(*({'inspect', 'hmac', '_hashlib'} & set(sys.modules)))"
    # A decorated class is looked up in its module, so the stand-ins are the modules.
    with_them = _output([sys.executable, "-I", "-S", "-c", f"{_STAND_IN}{_USE_LIGHTENED}{show}", *texts])
    usual = _output([sys.executable, "-I", "-S", "-c", _USE_LIGHTENED])
    assert with_them == f"{usual}\n"
    assert len(texts) == 2 * len(LIGHTENED)


@pytest.mark.parametrize(
    "text",
    [
        "from hmac import compare_digest, new\n",
        "from hmac import compare_digest\nfrom hmac import compare_digest\n",
        "import hmac.x\nfrom hmac import compare_digest\nhmac.new\n",
    ],
)
def test_a_module_of_another_python_stays_as_it_is_where_it_needs_more(text: str) -> None:
    assert lightened("secrets", text) == text


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def test_the_product_imports_nothing_that_is_left_out() -> None:
    found = {
        (module.name, each.module)
        for module in modules("execserver", "helpers")
        for each in module.imports()
        if any(f"{each.module}.".startswith(f"{name}.") for name in LEFT_OUT)
    }
    # The licences of an installed package; the built file has their texts.
    assert {name for name, _ in found} == {"execserver.verbs.licenses"}, found


_LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
early = set(sys.modules)
import execserver.dispatch
from execserver._helpers import linux_sandbox, linux_sandbox_cleanup, linux_sandbox_stdio
from execserver.protocol import json_text, permissions, sandbox
from execserver.sandbox import nesting, own_files
from execserver.sandbox.masks import host
from execserver.sandbox.policy import planner, policy, request_check
from execserver.zygote.confine import child, standalone
found = [each for name, each in sys.modules.items() if name not in early and getattr(each, "__file__", None)]
print(*(each.__spec__.name for each in found))  # some are there under two names
"""


def test_a_sandboxed_command_needs_only_the_first_file_of_modules() -> None:
    """To read the header of the other one would take a sixtieth of its time."""
    loaded = _output([sys.executable, "-I", "-S", "-c", _LOAD, str(ROOT)]).split()
    assert {"execserver.leaving", "execserver.zygote.confine.standalone"} <= set(loaded)
    assert [name for name in loaded if not is_for_helpers(name)] == []
