"""What the one file carries: everything it needs, from one machine's point of view and from any other's."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.one_file import Box, new_mounts
from tests.support.source import ROOT
from tools.freeze import boot, build
from tools.freeze.archive import TRAILER_BYTES, Payload
from tools.freeze.contents import PRODUCT_PACKAGES, is_left_out
from tools.freeze.elf import Elf, is_elf, read_elf
from tools.freeze.head import INIT, join
from tools.freeze.packages import INIT_MACHINES

SIZE_BAR = 22 * 2**20
ZIPAPP_SIZE_BAR = 30 * 2**20  # it carries the compiled modules of four Pythons
MIRROR_LIMIT_S = 600
# One of our modules after the other, and what failed; run by the interpreter of the tree.
LOAD_ALL = """
import marshal, sys
tree, names = sys.argv[1], sys.argv[2:]
sys.argv = [tree + "/boot.pyc"]
boot = {"__name__": "boot"}
exec(marshal.loads(open(sys.argv[0], "rb").read()[16:]), boot)
boot["take_over"](tree, ["-1", "/no/file", "execserver"])
for name in names:
    __import__(name)
print(len(names), sys.flags.optimize, sys.path)
"""


@pytest.fixture(scope="module")
def tree(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked tree."""
    box = Box(dist / "execserver", tmp_path_factory.mktemp("box"))
    box.run()
    return box.tree


def elf_files(tree: Path) -> dict[Path, Elf]:
    return {path: read_elf(path) for path in tree.rglob("*") if path.is_file() and is_elf(path)}


def index(tree: Path) -> tuple[dict[str, tuple[str, int, int, bool]], dict[str, str]]:
    """Return the headers of a tree's modules: where their code lies, and the files of the compiled ones."""
    places, extensions = {}, {}
    for name in (boot.HELPERS_FILE, boot.MODULES_FILE):
        with (tree / name).open("rb") as file:
            length = int.from_bytes(file.read(boot.LENGTH_BYTES), "big")
            _, own_places, own_extensions = marshal.loads(file.read(length))
        places.update(own_places)
        extensions.update(own_extensions)
    return places, extensions


def start_words(tree: Path) -> list[str]:
    (loader,) = (path for path in (tree / "lib").glob("ld-*"))
    return [str(loader), "--inhibit-cache", "--library-path", f"{tree}/lib", f"{tree}/python3", "-I", "-S"]


def test_every_file_finds_its_libraries_in_the_tree(tree: Path) -> None:
    files = elf_files(tree)
    carried = {path.name for path in files if path.parent == tree / "lib"}
    assert {
        (path.name, name) for path, elf in files.items() for name in elf.needed if name not in carried
    } == set()
    assert len({elf.machine for elf in files.values()}) == 1
    assert {elf.soname for path, elf in files.items() if path.parent == tree / "lib"} == carried


def test_the_loader_is_the_one_the_interpreter_asks_for(tree: Path) -> None:
    loader = read_elf(tree / "python3").loader
    assert loader is not None
    assert (tree / "lib" / Path(loader).name).exists()


def test_the_file_itself_needs_no_loader(dist: Path) -> None:
    with (dist / "execserver").open("rb") as file:
        if file.read(2) == b"#!":
            pytest.skip("there was no compiler to build a launcher with")
    assert read_elf(dist / "execserver").loader is None


def test_the_sandbox_init_is_in_the_tree_and_needs_nothing_of_it(dist: Path, tree: Path) -> None:
    with (dist / "execserver").open("rb") as file:
        if file.read(2) == b"#!":
            pytest.skip("there was no compiler to build a launcher with")
    if os.uname().machine not in INIT_MACHINES:
        pytest.skip("there is no sandbox init for this kind of machine")
    elf = read_elf(tree / INIT)
    assert (elf.loader, elf.needed, elf.machine) == (None, (), read_elf(tree / "python3").machine)
    assert os.access(tree / INIT, os.X_OK)


def test_every_module_of_ours_loads_from_the_tree(tree: Path) -> None:
    names = [name for name in index(tree)[0] if name.partition(".")[0] in PRODUCT_PACKAGES]
    assert {"execserver.server", "execserver.client", "execserver._helpers.codex_fs"} <= set(names)
    command = [*start_words(tree), "-c", LOAD_ALL, str(tree), *names]
    done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{len(names)} 0 []\n"


def test_a_start_loads_nothing_for_statements_that_speak_to_the_compiler(tree: Path) -> None:
    command = [
        *start_words(tree),
        "-X",
        "importtime",
        f"{tree}/boot.pyc",
        "-1",
        "/no/file",
        "execserver",
        "-V",
    ]
    done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert {"encodings", "execserver.dispatch", "execserver.version"} <= loaded
    assert "__future__" not in loaded


def test_what_is_left_out_is_not_there(tree: Path) -> None:
    places, extensions = index(tree)
    assert [name for name in (*places, *extensions) if is_left_out(name)] == []
    assert {"execserver.cli", "gevent", "msgspec", "encodings.idna", "zope"} <= set(places)
    assert {"gevent.libev.corecext", "_ssl", "msgspec._core"} <= set(extensions)


def test_no_path_of_this_machine_is_in_the_modules(tree: Path) -> None:
    data = b"".join((tree / name).read_bytes() for name in (boot.HELPERS_FILE, boot.MODULES_FILE))
    for folder in (ROOT, Path(os.__file__).parent, Path(pytest.__file__).parents[1]):
        assert os.fsencode(folder) not in data


def test_every_library_is_there_for_something(tree: Path) -> None:
    """Debian's interpreter, e.g., has no use for the libpython beside it."""
    needed = {need for elf in elf_files(tree).values() for need in elf.needed}
    by_name = {Path(read_elf(tree / "python3").loader or "").name, "libgcc_s.so.1"}
    assert {path.name for path in (tree / "lib").glob("*.so*")} - needed <= by_name


def test_it_is_small_enough(dist: Path) -> None:
    assert (dist / "execserver").stat().st_size < SIZE_BAR
    assert (dist / "execserver.pyz").stat().st_size < ZIPAPP_SIZE_BAR


def bare_root(folder: Path, program: Path) -> Path:
    """Make a root with nothing in it but the program, /proc and what a program may expect of a kernel."""
    root = folder / "root"
    for name in ("proc", "dev", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(program, root / "execserver")
    (root / "etc" / "nsswitch.conf").write_text("passwd: nosuch files\nhosts: nosuch files dns\n")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/none\n")
    return root


# Devices and terminals of the machine, a /proc of the own process namespace; then only the new root is left.
ENTER = """
root=$1
shift
for name in null zero urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
[ -n "${NO_PROC-}" ] || mount -t proc proc "$root/proc"
PATH=$PATH:/usr/sbin:/sbin  # where an ordinary user does not look
exec chroot "$root" "$@"
"""


def in_root(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another root, in process and mount namespaces of its own."""
    command = [*new_mounts(), "--pid", "--fork", "sh", "-euc", ENTER, "sh", str(root), *words]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_it_works_in_a_root_without_c_library_and_shell(one_file: Box, tmp_path: Path) -> None:
    done = in_root(bare_root(tmp_path, one_file.program), "/execserver", "self-test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\nOK in " in done.stdout


def test_without_proc_it_says_so(one_file: Box, tmp_path: Path) -> None:
    root = bare_root(tmp_path, one_file.program)
    done = in_root(root, "/execserver", "--version", NO_PROC="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "execserver: /proc is not mounted here\n  What to do: mount it, e.g. `mount -t proc proc /proc`\n"
    )


def test_temporary_folders_that_are_not_there_are_not_made(one_file: Box, tmp_path: Path) -> None:
    """One of mode 0700 would shut out every other user, and nobody would know why."""
    root = bare_root(tmp_path, one_file.program)
    (root / "tmp").rmdir()
    done = in_root(root, "/execserver", "--version", TMPDIR="/gone/x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[:5] == [
        "execserver: there is no folder to unpack into",
        "  /gone/x/execserver-0: there is no /gone",
        "  /tmp/execserver-0: there is no /tmp",
        "  /dev/shm/execserver-0: there is no /dev/shm",
        "  /var/tmp/execserver-0: there is no /var",
    ]
    assert {path.name for path in root.iterdir()} == {"proc", "dev", "etc", "execserver"}


@pytest.mark.long
@pytest.mark.timeout(MIRROR_LIMIT_S + 120)
def test_it_works_on_an_older_system(one_file: Box, tmp_path: Path) -> None:
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None or os.geteuid() != 0:
        pytest.skip("needs root and `debootstrap` to make a Debian 11")
    root = tmp_path / "root"
    command = [debootstrap, "--variant=minbase", "bullseye", str(root)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=MIRROR_LIMIT_S, check=False)
    if made.returncode:
        pytest.skip(f"no mirror gave a Debian 11: {made.stdout.strip().splitlines()[-1:]}")
    shutil.copy(one_file.program, root / "usr" / "local" / "bin" / "execserver")
    for path in (root / "dev").iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    done = in_root(root, "/usr/local/bin/execserver", "self-test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\nOK in " in done.stdout


def payload_of(file: Path) -> Payload:
    data = file.read_bytes()
    _, _, start, size, digest, *_ = data[-TRAILER_BYTES:].rstrip(b"\0").split()
    return Payload(data[int(start) : int(start) + int(size)], digest.decode())


def test_the_script_that_stands_in_for_the_launcher_does_its_work(
    one_file: Box, tree: Path, tmp_path: Path
) -> None:
    if (one_file.program).read_bytes()[:2] == b"#!":
        pytest.skip("there was no compiler: every test plays with the script")
    (loader,) = (path.name for path in (tree / "lib").glob("ld-*"))
    program = tmp_path / "script"
    program.write_bytes(join(ROOT / "launcher", None, loader, payload_of(one_file.program)))
    program.chmod(0o755)
    done = one_file.run(["self-test"], program, LD_LIBRARY_PATH="/nowhere")
    assert (done.returncode, done.stderr) == (0, b""), done.stdout
    assert one_file.tree.name == payload_of(one_file.program).hash
    (tmp_path / "codex-linux-sandbox").symlink_to(program)
    done = one_file.run([], tmp_path / "codex-linux-sandbox")
    assert (done.returncode, b"codex-linux-sandbox" in done.stderr) == (2, True)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    done = one_file.run(["--version"], program, EXECSERVER_CACHE_DIR=str(shared))
    assert (done.returncode, b"there is no folder to unpack into" in done.stderr) == (1, True)


@pytest.mark.long
def test_equal_inputs_give_equal_files(dist: Path) -> None:
    before = {path.name: path.read_bytes() for path in dist.iterdir()}
    command = [sys.executable, "-m", "tools.freeze.build", "--anew"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == before
    assert build.ONE_FILE.parent == dist
