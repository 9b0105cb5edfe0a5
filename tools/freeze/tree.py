"""Lays out the tree that the launcher unpacks.

    boot.pyc        the first code that runs
    helpers.bin     the modules that file helpers need
    modules.bin     all other modules
    python3         the interpreter
    sandbox-init    forks sandboxed commands; absent where it was not compiled
    ext/            extension modules, under their full names
    licenses.txt    the licence of everything in it
    console/        the pages of `execserver web`
    lib/            the dynamic loader, the C library, every other shared library
    lib/python3.X/  what the interpreter wants to find before the first line of ours runs

Runs in the interpreter it carries, or in one that makes the same byte-code.  Equal inputs give an equal tree:
no time, no path of this machine, no hash order is in it.
"""

from __future__ import annotations
import __future__

import ast
import marshal
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import TypeGuard

from tools.freeze import boot
from tools.freeze.analysis import Analysis
from tools.freeze.contents import (
    EARLY_MODULES,
    HELPER_EXTENSIONS,
    is_for_helpers,
    lightened,
    replaced_modules,
)
from tools.freeze.elf import is_elf, read_elf
from tools.freeze.patterns import compile_ahead
from tools.freeze.platforms import LOADED_BY_NAME, Platform
from tools.freeze.symbols import emptied
from tools.problems import Problem

OPTIMIZE = 2  # no assertions, no docstrings
FILE_MODE, PROGRAM_MODE = 0o600, 0o700


def lay_out(analysis: Analysis, platform: Platform, tree: Path, root: Path) -> str:
    """Fill an empty folder; return the name of the dynamic loader in it.

    Raises Problem when something that is needed cannot be found.
    """
    program, loader = platform.interpreter, platform.loader
    place(program, tree / "python3", PROGRAM_MODE)
    for name, source in analysis.libraries.items():
        place(source, tree / "lib" / name)
    extensions = {}
    for name, source in analysis.extensions.items():
        extensions[name] = f"ext/{name}.so"
        place(source, tree / extensions[name])
    place(loader.resolve(), tree / "lib" / loader.name, PROGRAM_MODE)
    _complete_libraries(analysis, platform, tree / "lib")
    _leave_out_unneeded(tree, loader.name)
    _strip(tree, platform.is_native)
    _write_modules(analysis, extensions, loader.name, tree, root)
    _write_early_files(platform.standard_library, tree)
    return loader.name


def helper_files(tree: Path, loader: str) -> list[Path]:
    """Return what of a tree a file helper needs, folders included."""
    extensions = [tree / f"ext/{name}.so" for name in HELPER_EXTENSIONS]
    carried = [path for path in extensions if path.exists()]  # others are built into this interpreter
    programs = [tree / "python3", *carried]
    needed, unread = {loader}, [*programs]
    while unread:
        fresh = set(read_elf(unread.pop()).needed) - needed
        needed |= fresh
        unread += [tree / "lib" / name for name in fresh]
    home = tree / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    early = [home, *home.rglob("*")]
    files = [
        *programs,
        *(tree / "lib" / name for name in needed),
        tree / "boot.pyc",
        tree / boot.HELPERS_FILE,
    ]
    return sorted({*files, *early, tree / "ext", tree / "lib"})


def write_text(target: Path, text: str) -> None:
    """Write a file that is read as text."""
    target.write_text(text)
    target.chmod(FILE_MODE)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder with some files."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(FILE_MODE)


def place(source: Path, target: Path, mode: int = FILE_MODE) -> None:
    """Copy a file into the tree."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _complete_libraries(analysis: Analysis, platform: Platform, folder: Path) -> None:
    """Add every library that is needed, down to the C library, as the platform finds it."""
    files = [platform.interpreter, *analysis.extensions.values(), *analysis.libraries.values()]
    for name, path in sorted(platform.libraries(files).items()):
        if not (folder / name).exists():
            place(path.resolve(), folder / name)
    carried = [path for path in (*files, *folder.iterdir()) if is_elf(path)]
    missing = {need for path in carried for need in read_elf(path).needed if not (folder / need).exists()}
    if missing:
        raise Problem(f"libraries are missing: {', '.join(sorted(missing))}", "install them and build again")


def _leave_out_unneeded(tree: Path, loader: str) -> None:
    """Remove libraries that nothing loads: the interpreter of Debian holds all of its own libpython."""
    while True:
        needed = {need for path in tree.rglob("*") if path.is_file() for need in _needed(path)}
        unneeded = {path.name for path in (tree / "lib").iterdir()} - needed - {loader, *LOADED_BY_NAME}
        if not unneeded:
            return
        for name in unneeded:
            (tree / "lib" / name).unlink()


def _needed(path: Path) -> tuple[str, ...]:
    return read_elf(path).needed if is_elf(path) else ()


def _strip(tree: Path, is_native: bool) -> None:
    """Remove what only debuggers read, a tenth of the size of some files, or empty it at least."""
    strip = shutil.which("strip") if is_native else None
    for path in sorted(tree.rglob("*")):
        if not path.is_file() or not is_elf(path):
            continue
        if strip is None:
            path.write_bytes(emptied(path.read_bytes()))
        else:
            # A file it cannot work on stays as it is.
            subprocess.run([strip, "--strip-unneeded", str(path)], capture_output=True, check=False)


def _write_modules(
    analysis: Analysis, extensions: dict[str, str], loader: str, tree: Path, root: Path
) -> None:
    replaced = replaced_modules(root)
    # None: a namespace package, which has no file and becomes an empty module here.
    sources: dict[str, Path | None] = {
        **dict.fromkeys(_parents([*analysis.modules, *extensions])),
        **analysis.modules,
    }
    for target, for_helpers in ((boot.HELPERS_FILE, True), (boot.MODULES_FILE, False)):
        places: dict[str, tuple[str, int, int, bool]] = {}
        body = bytearray()
        for name in sorted(name for name in sources if is_for_helpers(name) == for_helpers):
            path = sources[name]
            text = replaced[name] if name in replaced else path.read_text("utf-8") if path else ""
            data = marshal.dumps(_compile(lightened(name, text).encode(), name))
            places[name] = (target, len(body), len(data), path is None or path.name == "__init__.py")
            body += data
        own = {name: file for name, file in sorted(extensions.items()) if is_for_helpers(name) == for_helpers}
        header = marshal.dumps((loader, places, own))
        (tree / target).write_bytes(len(header).to_bytes(boot.LENGTH_BYTES, "big") + header + body)
        (tree / target).chmod(FILE_MODE)


def _parents(names: list[str]) -> set[str]:
    return {name[:at] for name in names for at in range(len(name)) if name[at] == "."}


def _write_early_files(stdlib: Path, tree: Path) -> None:
    """Write what the interpreter looks for; of `os` it sees the file only, as mark of a standard library."""
    home = tree / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (home / "lib-dynload").mkdir(parents=True)
    (home / "encodings").mkdir()
    _write_pyc(home / "os.pyc", _compile(b"", "os"))
    for name in EARLY_MODULES:
        _write_pyc(home / f"{name}.pyc", _compile((stdlib / f"{name}.py").read_bytes(), name))
    _write_pyc(tree / "boot.pyc", _compile(Path(boot.__file__).read_bytes(), "boot"))


def _compile(text: bytes, name: str) -> CodeType:
    # A name in angle brackets: tracebacks then look for no source file in the folder a user happens to be in.
    parsed = ast.parse(text, f"<{name}>")
    flags = 0
    for statement in [each for each in parsed.body if _speaks_to_the_compiler(each)]:
        # Left in, it would also load a module, before anything else at each start.
        parsed.body.remove(statement)
        for each in statement.names:
            flags |= getattr(__future__, each.name).compiler_flag
    compile_ahead(parsed)
    code: CodeType = compile(parsed, f"<{name}>", "exec", flags, dont_inherit=True, optimize=OPTIMIZE)
    return code


def _speaks_to_the_compiler(statement: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _write_pyc(target: Path, code: CodeType) -> None:
    """Write code the way Python reads it without asking for a source: its magic number, no flags, no time."""
    target.write_bytes(MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    target.chmod(FILE_MODE)
