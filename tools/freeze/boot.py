"""The first code that runs in an unpacked tree: it finds the modules, tidies the process up, and dispatches.

It is started as `python3 -I -S -Xutf8 boot.pyc LOCK SELF NAME ARGUMENTS...`: the descriptor that holds the
tree's lock (-1: none), the path of the file the user started, and the name it was started by.

In the tree of dist/execserver all modules lie in two files, `helpers.bin` and `modules.bin`: a header, which
is marshal data, and the code objects it points to.  A dictionary look-up and one read load a module, which is
less work than a search path, and the tree has a hundred files instead of five hundred.  The second file is
looked into only for what the first one has not: to read its header takes half a millisecond.  The tree of
dist/execserver.pyz has no such files: there the modules are the usual ones.

A file helper in somebody else's sandbox gets a part of the tree for itself alone, without `modules.bin`.  It
loads what is in it, and removes it before anything else is done: whoever kills the helper leaves nothing.
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

HELPERS_FILE, MODULES_FILE = "helpers.bin", "modules.bin"
OWN_PART = -2  # in the place of the lock: the tree is a part of one, and this process's to remove
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
        """Read the first header.  Raises FileNotFoundError in a tree that has none."""
        self._tree = tree
        self._is_whole = False
        self._files: dict[str, bytes] = {}  # name -> contents, of what is not read from the tree any more
        self._starts: dict[str, int] = {}  # file -> where the first code object begins
        self._places: dict[
            str, tuple[str, int, int, bool]
        ] = {}  # file, place behind the start, length, package
        self._extensions: dict[str, str] = {}
        self.loader = self._read_header(HELPERS_FILE)

    def _read_header(self, name: str) -> str:
        length = int.from_bytes(self._read(name, 0, LENGTH_BYTES), "big")
        loader, places, extensions = marshal.loads(self._read(name, LENGTH_BYTES, length))
        self._starts[name] = LENGTH_BYTES + length
        self._places.update(places)
        self._extensions.update(extensions)
        return str(loader)

    def _read(self, name: str, offset: int, length: int) -> bytes:
        if name in self._files:
            return self._files[name][offset : offset + length]
        return _read(f"{self._tree}/{name}", offset, length)

    def _knows(self, name: str) -> bool:
        """Tell whether a module is in the tree; the second header is read when the first has not got it."""
        if not (self._is_whole or name in self._places or name in self._extensions):
            self._is_whole = True
            self._read_header(MODULES_FILE)
        return name in self._places or name in self._extensions

    def take_all(self) -> None:
        """Load everything of a part of a tree, which can then be removed."""
        self._is_whole = True
        path = f"{self._tree}/{HELPERS_FILE}"
        self._files[HELPERS_FILE] = _read(path, 0, posix.stat(path).st_size)
        for name in self._extensions:
            __import__(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the tree, or None."""
        if not self._knows(name):
            return None
        if name in self._places:
            is_package = self._places[name][3]
            folder = f"{self._tree}/{name.replace('.', '/')}"
            origin = f"{folder}/__init__.py" if is_package else f"{folder}.py"
            spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
            if is_package:
                spec.submodule_search_locations = [folder]
        else:
            file = f"{self._tree}/{self._extensions[name]}"
            spec = ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it."""
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> CodeType:
        """Return the code of a module of the tree."""
        file, offset, length, _ = self._places[name]
        code: CodeType = marshal.loads(self._read(file, self._starts[file] + offset, length))
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
    if int(lock) == OWN_PART:
        _take_over_part(tree, own_file)
        return
    start = (sys.executable, "-I", "-S", "-Xutf8", *_cache_options(), script, "-1", own_file, PROGRAM_NAME)
    before = _find_modules(tree)
    if before:
        sys.executable = own_file  # the interpreter in the tree cannot be started by its path alone
    # The words that start this program again, in whatever role; its own file is the last but one.
    sys.frozen = (*before, *start)  # type: ignore[attr-defined]
    _give_names_back()
    _name_process(sys.argv[0])


def _take_over_part(tree: str, own_file: str) -> None:
    """Load all of a part of a tree into this process, and remove it."""
    importer = TreeImporter(tree)
    sys.meta_path[2:] = [importer]
    sys.path[:] = []
    importer.take_all()
    _remove(tree)
    sys.executable = own_file
    sys.frozen = (own_file,)  # type: ignore[attr-defined]
    _give_names_back()
    _name_process(sys.argv[0])


def _remove(folder: str) -> None:
    """Remove a folder with all that is in it; what cannot be removed is left to later starts."""
    try:
        with posix.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                else:
                    posix.unlink(entry.path)
        posix.rmdir(folder)
    except OSError:
        return


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
