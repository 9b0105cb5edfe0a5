"""What goes into the build and what does not: modules left out, modules replaced, with the reasons."""

from __future__ import annotations

from pathlib import Path

from tools.environment import pins

PRODUCT_PACKAGES = ("execserver", "helpers")
# The folder `helpers/` goes into the package, in the place of the module that leads to it from a checkout.
HELPERS, CARRIED_HELPERS = "helpers", "execserver._helpers"

# Imported by compiled code, where PyInstaller does not see it.
ALSO_NEEDED = ("numbers",)  # by _decimal, which msgspec imports

# Reached by PyInstaller through imports that never run here.  A package takes its submodules along.
LEFT_OUT = (
    # gevent: other loops and resolvers, servers and tools that are not used
    "gevent._ffi",
    "gevent.ares",
    "gevent.backdoor",
    "gevent.libev._corecffi",
    "gevent.libev._corecffi_build",
    "gevent.libev.watcher",
    "gevent.libuv",
    "gevent.monkey._main",
    "gevent.pywsgi",
    "gevent.resolver.ares",
    "gevent.resolver.cares",
    "gevent.resolver.dnspython",
    "gevent.resolver_ares",
    "gevent.testing",
    "gevent.tests",
    "cffi",
    "dns",
    "psutil",
    # websockets: only its protocol and frames are used
    "websockets.__main__",
    "websockets.asyncio",
    "websockets.auth",
    "websockets.cli",
    "websockets.legacy",
    "websockets.proxy",
    "websockets.sync",
    "websockets.trio",
    # installed here for development, and tried by libraries that work without
    "attr",
    "pkg_resources",
    "setuptools",
    "simplejson",
    "tomli_w",
    "typing_extensions",
    # PyYAML: only its parser in Python is used, not the one in C, of 2 MiB
    "_yaml",
    "yaml._yaml",
    "yaml.cyaml",
    # the standard library: other protocols, archives, metadata of packages, development tools
    "_compression",
    "_pydecimal",
    "argparse",
    "asyncio",
    "bz2",
    "code",
    "codeop",
    "csv",
    "curses",
    "doctest",
    "fractions",
    "ftplib",
    "getopt",
    "gettext",
    "gzip",
    "http.client",
    "http.cookiejar",
    "http.server",
    "imp",
    "importlib.metadata",
    "importlib.readers",
    "importlib.resources",
    "lib2to3",
    "lzma",
    "mimetypes",
    "multiprocessing",
    "netrc",
    "nturl2path",
    "pdb",
    "pydoc",
    "readline",
    "runpy",
    "statistics",
    "test",
    "tkinter",
    "unittest",
    "urllib.error",
    "urllib.request",
    "urllib.response",
    "xmlrpc",
    "zipfile",
    # their compiled parts
    "_bz2",
    "_codecs_cn",
    "_codecs_hk",
    "_codecs_iso2022",
    "_codecs_jp",
    "_codecs_kr",
    "_codecs_tw",
    "_csv",
    "_lzma",
    "_multibytecodec",
    "_statistics",
    # for `uuid.uuid1` only, which nobody here asks for; a library of the system comes with it
    "_uuid",
)

# The codecs Python itself and the host names of URLs need; the encodings of old code pages stay behind.
ENCODINGS = (
    "aliases",
    "ascii",
    "idna",
    "latin_1",
    "punycode",
    "raw_unicode_escape",
    "unicode_escape",
    "utf_16",
    "utf_16_be",
    "utf_16_le",
    "utf_32",
    "utf_32_be",
    "utf_32_le",
    "utf_8",
    "utf_8_sig",
)

# Imported before our importer is there, so they lie in files of their own.
EARLY_MODULES = (
    "encodings/__init__",
    "encodings/aliases",
    "encodings/ascii",
    "encodings/latin_1",
    "encodings/utf_8",
)


# What `codex-fs` needs of the tree; inside somebody else's sandbox it unpacks no more than this.  A name that
# ends with a dot stands for the modules of that package.
HELPER_MODULES = (
    "execserver",
    "execserver._helpers",
    "execserver._helpers.",
    "execserver.dispatch",
    "execserver.files",
    "execserver.files.",
    "execserver.leaving",
    "execserver.protocol",
    "execserver.protocol.",
    "execserver.resources",
    "execserver.resources.",
    "execserver.runtime_paths",
    "execserver.sandbox",
    "execserver.sandbox.",
    "execserver.zygote",
    "execserver.zygote.",
    "__future__",
    "_collections_abc",
    "abc",
    "codecs",
    "ctypes",
    "ctypes._endian",
    "encodings",
    "encodings.",
    "genericpath",
    "io",
    "os",
    "posixpath",
    "stat",
    "struct",
    "types",
    # PyYAML's parser, and what that loads
    "yaml",
    *(f"yaml.{name}" for name in ("composer", "error", "events", "nodes", "parser", "reader", "resolver")),
    *("yaml.scanner", "yaml.tokens"),
    "collections",
    "copyreg",
    "enum",
    "functools",
    "keyword",
    "operator",
    "re",
    "re.",
    "reprlib",
)
HELPER_EXTENSIONS = ("_ctypes", "_json", "_socket", "_struct", "binascii", "fcntl", "resource", "select")


def is_for_helpers(name: str) -> bool:
    """Tell whether a module is in the part of the tree that helpers unpack."""
    if name in HELPER_EXTENSIONS:
        return True
    return any(name == each or (each.endswith(".") and name.startswith(each)) for each in HELPER_MODULES)


_NO_INTERFACES = """
class Interface:
    pass

class Attribute:
    def __init__(self, *description):
        pass

def classImplements(implementing, *interfaces):
    pass

def implementer(*interfaces):
    return lambda implementing: implementing
"""


# Python 3.11 makes all of it in Python first, and then puts what is in C in its place; 3.12 has this only.
_ONLY_IN_C = """
from _datetime import *
from _datetime import __doc__
"""

# For `uuid`, which asks at its import whether it is on AIX.
_ONE_PLATFORM = """
def system():
    return "Linux"
"""

# gevent takes the indents off docstrings, of which there are none here; exception groups are shown with some.
_PLAIN_TEXTWRAP = """
def dedent(text):
    return text

def indent(text, prefix, predicate=str.strip):
    return "".join(prefix + line if predicate(line) else line for line in text.splitlines(True))
"""

# gevent shows its greenlets with it when somebody asks in the program, and nobody does.
_PLAIN_PPRINT = """
def pformat(shown, *args, **kwargs):
    return repr(shown)

saferepr = repr  # gevent looks it up for each hub
"""

# `linecache` opens source files with it, of which there are none here.
_NO_TOKENS = """
class TokenError(Exception):
    pass

def open(filename):
    raise OSError(f"{filename} is not read as source")
"""


# Modules of the standard library without one of their imports: its name, and what is put in whose place.
LIGHTENED = {
    # It describes each class in a docstring.  That loads `ast`, `dis` and more, and to look at a class takes
    # longer than to make it: a twentieth of a server's start.
    "dataclasses": ("inspect", (("import inspect\n", ""), ("str(inspect.signature(cls))", '""'))),
    # It compares as OpenSSL does, and loads all of that; the interpreter has the same.  Another twentieth.
    "secrets": (
        "hmac",
        (
            (
                "from hmac import compare_digest\n",
                "from _operator import _compare_digest as compare_digest\n",
            ),
        ),
    ),
}


def lightened(name: str, text: str) -> str:
    """Return the text of a module without the import that it can do without; another Python's may need it."""
    if name not in LIGHTENED:
        return text
    unneeded, changes = LIGHTENED[name]
    made = text
    for old, new in changes:
        if made.count(old) != 1:
            return text
        made = made.replace(old, new)
    return text if f"{unneeded}." in made else made


def replaced_modules(root: Path) -> dict[str, str]:
    """Return module -> the text that stands in for it.

    With `zope.interface` gevent notes which interfaces its loop has, and nobody here asks: 7 ms of a start.
    `websockets.version` imports `importlib.metadata`, and with it the email package, for a look-up that
    releases never make: 40 ms of a start.  `yaml` imports all of PyYAML, of which only the parser is used.

    `platform`, `textwrap` and `tokenize` compile regular expressions that match nothing here; `pprint` loads
    `dataclasses` and `inspect`, `msgspec` what describes types and schemas, which is for development.
    Together they are a tenth of `run -- true` and of a server's start.
    """
    versions = dict(pin.split("==") for pin in pins([root / "requirements.txt"]))
    return {
        "datetime": _ONLY_IN_C,
        "msgspec._json_schema": "schema = schema_components = None\n",
        "msgspec.inspect": "",
        "platform": _ONE_PLATFORM,
        "pprint": _PLAIN_PPRINT,
        "textwrap": _PLAIN_TEXTWRAP,
        "tokenize": _NO_TOKENS,
        "websockets.version": f"tag = version = commit = {versions['websockets']!r}\n",
        "yaml": "",
        "zope.interface": _NO_INTERFACES,
    }


def product_modules(root: Path) -> list[str]:
    """Return the dotted names of all modules of the product: many are imported by name only."""
    found = []
    for package in PRODUCT_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append(".".join(parts).removesuffix(".__init__"))
    return [name for name in found if not name.endswith("__main__")]


def carried_modules(found: dict[str, Path]) -> dict[str, Path]:
    """Return modules, name -> file, under the names that they have in what is built."""
    taken = {name: path for name, path in found.items() if name.partition(".")[0] == HELPERS}
    others = {name: path for name, path in found.items() if name not in taken}
    return {**others, **{name.replace(HELPERS, CARRIED_HELPERS, 1): path for name, path in taken.items()}}


def is_left_out(name: str) -> bool:
    """Tell whether a module stays behind although something imports it."""
    if name.startswith("encodings."):
        return name.removeprefix("encodings.") not in ENCODINGS
    return any(name == each or name.startswith(f"{each}.") for each in LEFT_OUT)
