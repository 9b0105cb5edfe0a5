"""The first code that runs in an unpacked tree: it finds the modules, tidies the process up, and dispatches.

It is started as `python3 -I -S -Xutf8 boot.pyc LOCK SELF NAME ARGUMENTS...`: the descriptor that holds the
tree's lock (-1: none), the path of the file the user started, and the name it was started by.

In the tree of dist/execserver all modules lie in one file, `modules.bin`: a header, which is marshal data,
and the code objects it points to.  A dictionary look-up and one read load a module, which is less work than
a search path, and the tree has a hundred files instead of five hundred.  The tree of dist/execserver.pyz has
no such file: there the modules are the usual ones.
"""

from __future__ import annotations

import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

MODULES_FILE = "modules.bin"
LENGTH_BYTES = 8  # of the header's length, which comes first

# The launcher hides what is meant for the user's programs from our own loader under this prefix.
KEPT_PREFIX = b"_EXECSERVER_KEPT_"

PROGRAM_NAME = "execserver"

_COMM_BYTES = 15  # the kernel keeps no more of a process name


class TreeImporter:
    """Finds every module of the tree by its full name.

    Keeps no descriptor: some programs close all that they do not know.
    """

    def __init__(self, tree: str) -> None:
        """Read the header.  Raises FileNotFoundError in a tree that has none."""
        self._tree = tree
        self._file = f"{tree}/{MODULES_FILE}"
        length = int.from_bytes(_read(self._file, 0, LENGTH_BYTES), "big")
        self.loader, self._places, self._extensions = marshal.loads(_read(self._file, LENGTH_BYTES, length))
        self._start = LENGTH_BYTES + length

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the tree, or None."""
        if name in self._places:
            is_package = self._places[name][2]
            folder = f"{self._tree}/{name.replace('.', '/')}"
            origin = f"{folder}/__init__.py" if is_package else f"{folder}.py"
            spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
            if is_package:
                spec.submodule_search_locations = [folder]
            spec.has_location = True
            return spec
        if name in self._extensions:
            file = f"{self._tree}/{self._extensions[name]}"
            spec = ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
            spec.has_location = True
            return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it."""
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> CodeType:
        """Return the code of a module of the tree."""
        offset, length, _ = self._places[name]
        code: CodeType = marshal.loads(_read(self._file, self._start + offset, length))
        return code


def _read(path: str, offset: int, length: int) -> bytes:
    file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.pread(file, length, offset)
    finally:
        posix.close(file)


def take_over(tree: str, words: list[str]) -> None:
    """Make this interpreter the program of a tree; `words` are LOCK SELF NAME ARGUMENTS."""
    script = sys.argv[0]
    lock, own_file, *sys.argv = words
    if int(lock) >= 0:
        posix.set_inheritable(int(lock), False)
    start = (sys.executable, "-I", "-S", "-Xutf8", *_cache_options(), script, "-1", own_file, PROGRAM_NAME)
    before = _find_modules(tree)
    if before:
        sys.executable = own_file  # the interpreter in the tree cannot be started by its path alone
    # The words that start this program again, in whatever role; its own file is the last but one.
    sys.frozen = (*before, *start)  # type: ignore[attr-defined]
    _give_names_back()
    _name_process(sys.argv[0])


def _cache_options() -> tuple[str, ...]:
    """Return what keeps this interpreter from taking compiled modules that lie beside others."""
    return ("-B", f"-Xpycache_prefix={sys.pycache_prefix}") if sys.pycache_prefix else ()


def _find_modules(tree: str) -> tuple[str, ...]:
    """Make the tree's modules importable; return what has to precede its interpreter to start it."""
    try:
        importer = TreeImporter(tree)
    except FileNotFoundError:
        sys.path.insert(0, tree)
        return ()
    # The built-in and the frozen modules stay first; the search path is not asked at all.
    sys.meta_path[2:] = [importer]
    sys.path[:] = []
    libraries = f"{tree}/lib"
    return (f"{libraries}/{importer.loader}", "--inhibit-cache", "--library-path", libraries)


def _give_names_back() -> None:
    import os

    for name in [name for name in os.environb if name.startswith(KEPT_PREFIX)]:
        os.environb[name.removeprefix(KEPT_PREFIX)] = os.environb.pop(name)


def _name_process(name: str) -> None:
    """Be listed under our name, not the loader's; writing to /proc needs no foreign function call."""
    try:
        file = posix.open("/proc/self/comm", posix.O_WRONLY | posix.O_CLOEXEC)
    except OSError:
        return  # a name is all that is lost
    posix.write(file, name.rpartition("/")[2].encode("utf-8", "surrogateescape")[:_COMM_BYTES])
    posix.close(file)


def main() -> int:
    """Run the program of the tree this script lies in."""
    take_over(sys.argv[0].rpartition("/")[0], sys.argv[1:])
    from execserver.dispatch import main as dispatch

    return dispatch()


if __name__ == "__main__":
    sys.exit(main())
