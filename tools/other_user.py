"""The tests once more as an ordinary user, which is made for that: no account, a closed home, no rights.

Only root can do so.  The user is a number that nobody has; nothing of the machine is changed.  Its home holds
a copy of the project and of the environment, in a path with letters beyond ASCII, and is removed at the end.
No space is in it: the first line of a script, as tests write them, cannot name an interpreter with one.
Where the interpreter is closed to others, the system's of the same version takes its place.  Standard library
only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools.problems import say

# What differs for a user without rights: who may look, map and mount, and what is unpacked where.  The lanes
# take about as long as each other.
PART = (
    ("tests/sandbox", "tests/test_doctor.py", "tests/test_self_test.py"),
    ("tests/zygote", "tests/e2e/test_process_exit.py"),
    ("tests/services", "tests/crash", "tests/test_lanes.py", "tests/test_build.py"),
    (
        *("tests/files", "tests/helpers", "tests/packaging/test_unpacking.py"),
        *("tests/http_client/test_connect.py", "tests/http_client/test_tls.py"),
        *("tests/e2e/test_sandboxed_files.py", "tests/e2e/test_sandboxed_files_denied.py"),
        *("tests/e2e/test_sandboxed_processes.py", "tests/e2e/test_terminals.py"),
        *("tests/e2e/test_session_resume.py", "tests/sdk/test_sandbox.py", "tests/sdk/test_upload.py"),
        "tests/mcp/test_call_network.py",
    ),
)
# What of it is the same for everybody: it asks the system for nothing.
SAME_FOR_ALL = (
    *("tests/helpers/test_fs_request.py", "tests/helpers/test_linux_sandbox_arguments.py"),
    *("tests/sandbox/test_call_numbers.py", "tests/sandbox/test_explain.py", "tests/sandbox/test_globs.py"),
    *("tests/sandbox/test_plan_properties.py", "tests/sandbox/test_plan_record.py"),
    *("tests/sandbox/test_report.py", "tests/sandbox/test_request_check.py"),
    *("tests/sandbox/test_worker_records.py", "tests/services/test_current_plan.py"),
    *("tests/services/test_egress_trail.py", "tests/services/test_http_cookies.py"),
    *("tests/services/test_http_differences.py", "tests/services/test_http_headers.py"),
    *("tests/services/test_http_request.py", "tests/services/test_http_service.py"),
    "tests/services/test_http_streams.py",
)
_FIRST_ID = 41_000
# What is compiled is taken along, but not by pytest: that names the files it was made of, which are closed.
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "*-pytest-*.pyc")
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "CI", "EXECSERVER_FRAMEWORKS")


class Home(NamedTuple):
    """Where the user lives: the project, the interpreter of its environment, and who it is."""

    user: int
    project: Path
    python: Path

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the user's environment; of the caller's it has what everybody has."""
        kept = {name: given[name] for name in _KEPT_VARIABLES if name in given}
        built = self.project / "dist" / "execserver"
        # What pytest makes of its own accord lies in a folder of the user's name.  This one has none, and the
        # folder of those without one may be somebody else's.
        place = {"HOME": str(self.project.parent), "PYTEST_DEBUG_TEMPROOT": str(self.project.parents[1])}
        return {**kept, **place, "EXECSERVER_PROGRAM": str(built)}


def why_not() -> str:
    """Return why there can be no other user; nothing when there can."""
    if os.geteuid() != 0:
        return "only root can become another user"
    if _open_interpreter(sys.executable) is None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return f"there is no {version} that another user could start; {sys.executable} is closed to others"
    return ""


@contextmanager
def home(project: Path, python: Path) -> Iterator[Home]:
    """Make the user's home with copies of the project, as it is, and of its environment."""
    user = free_id()
    shared = Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="execserver-user-", dir=shared if _is_open(shared) else "/tmp"))
    try:
        where = folder / "hömé" / project.name
        say(f"copying the project for user {user} to {where}")
        shutil.copytree(project, where, symlinks=True, ignore=_LEFT_OUT)
        environment = where / ".venv"
        shutil.copytree(python.parents[1], environment, symlinks=True)
        _lead_to(environment, python.name, _open_interpreter(str(python)) or str(python))
        _give(folder, user)
        yield Home(user, where, environment / "bin" / python.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_id() -> int:
    """Return a number that is no user's, has no process and is in nobody's account."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    for name in os.listdir("/proc"):
        try:
            used.add(os.stat(f"/proc/{name}").st_uid)
        except OSError:
            continue  # it has ended
    return next(number for number in range(_FIRST_ID, 60_000) if number not in used)


def _open_interpreter(python: str) -> str | None:
    """Return a path by which every user can start an interpreter of this version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (os.path.realpath(python), f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        if os.path.exists(candidate) and _is_open(Path(candidate).resolve()):
            return candidate
    return None


def _is_open(path: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _lead_to(environment: Path, name: str, interpreter: str) -> None:
    """Have a copied environment start that interpreter."""
    link = environment / "bin" / name
    link.unlink()
    link.symlink_to(interpreter)
    settings = environment / "pyvenv.cfg"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("home")]
    settings.write_text("\n".join([f"home = {os.path.dirname(interpreter)}", *lines, ""]))


def _give(folder: Path, user: int) -> None:
    """Make a folder and all in it the user's, readable for nobody else."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), user, user, follow_symlinks=False)
    os.chown(folder, user, user)
    folder.chmod(0o700)
