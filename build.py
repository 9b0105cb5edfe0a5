#!/usr/bin/env python3
"""The one driver of this project.

    python3 build.py demo            show remote mode on this machine: relay, executor, a command, an edit
                     cluster         show three relays that share a Redis, and kill them: needs Debian's
                                     redis-server and haproxy
                     --source        without building the files first
    python3 build.py run [ARGS]      start the server (its own options follow, see `run --help`)
    python3 build.py test [ARGS]     run the tests; as root, some as an ordinary user too; ARGS go to pytest
                    --long           full rounds and soak tests, and all of them as that user
                    --reference      the tests against the reference program, which they install themselves
                    --matrix [WORD]  try the files of `build --all` on many kernels, in emulated machines
    python3 build.py build           make dist/execserver and dist/execserver.pyz, and print their figures
                     --record        keep the figures in bench/ as those of a release
                     --target M      make dist/execserver-M for machines of kind M (aarch64, x86_64), of
                                     pinned packages, with dist/install.sh; needs apt
                     --all           the same for all kinds of machines, and dist/execserver-all.pyz for
                                     machines of all kinds that have a Python
    python3 build.py wheels          make the wheels of the server and of the SDK in dist/
    python3 build.py lint            check style, format and types
    python3 build.py bench [ARGS]    measure the server, beside the reference where there is one
                     relay [ARGS]    measure the relay, and executors behind it
                     shell [ARGS]    measure the shell tool, beside a plain shell and the reference
                     sdk [ARGS]      measure the SDK, beside the gevent client and SWE-ReX
                     ops [ARGS]      measure limits, audit log, recorder, upgrade and metrics, beside targets
                     cost [ARGS]     count instructions, system calls and switches of each operation
    python3 build.py docs            generate docs/protocol.md, docs/sdk-reference.md, the SDK's blocking twin

Needs Python 3.11 or newer and nothing else: it makes .venv and installs the pinned packages where they are
missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.environment import MINIMUM_PYTHON, Environment, prepare
from tools.freeze.packages import MACHINES
from tools.lanes import Runner, play, play_all, run_in_lanes, run_limited, worst
from tools.other_user import PART, SAME_FOR_ALL, home, why_not
from tools.problems import Problem, from_os_error, say, tell

ROOT = os.path.dirname(os.path.abspath(__file__))

BENCHES = {
    "client": "bench.person",
    "relay": "bench.relay",
    "shell": "bench.shell_tool",
    "cost": "bench.cost",
    "sdk": "bench.sdk",
    "egress": "bench.egress",
    "ops": "bench.ops",
}
GENERATORS = ("tools.protocol_page", "tools.sdk.write_twin", "tools.sdk.reference")
PROGRAM_VARIABLE = "EXECSERVER_PROGRAM"  # tells the tests which file stands for the server
# For runs that hang.  Alone on two processors they take 8, 45, 3 and 20 minutes; beside others twice that.
TEST_LIMIT_S = 30 * 60
LONG_TEST_LIMIT_S = 75 * 60
OTHER_USER_LIMIT_S = 15 * 60
REFERENCE_TEST_LIMIT_S = 60 * 60


def demo(arguments: list[str]) -> int:
    """Show remote mode with the built file, or with the source where that cannot be built."""
    _expect_none("demo", [word for word in arguments if word not in ("cluster", "--source")])
    module = "tools.demo_cluster" if "cluster" in arguments else "tools.demo"
    if "--source" in arguments:
        environment = prepare(Path(ROOT), "run")
        program = [str(environment.python), "-m", "execserver"]
    else:
        program, environment = _built_or_source()
    # In the place of this process, so that Ctrl-C meets one that ends what it has started.
    os.chdir(ROOT)
    os.execv(environment.python, [str(environment.python), "-m", module, *program])


def run(arguments: list[str]) -> int:
    """Become the server that users get, built if it is not up to date."""
    program, _ = _built()
    os.execv(program, [program, *arguments])


def test(arguments: list[str]) -> int:
    """Run pytest, all of it in lanes, with an end: what hangs is interrupted and reported, then killed.

    Servers of the tests are the built file; a long run plays the end-to-end tests on the source besides.
    As root, some of it is played as an ordinary user, too, and all of it in a long run.  Rounds are long only
    the first time.
    """
    if "--matrix" in arguments:
        words = [word for word in arguments if word != "--matrix"]
        return _call([str(prepare(Path(ROOT), "dev").python), "-m", "tests.machines.matrix", *words])
    variables = dict(os.environ)
    # Each lane, and many a program that it starts, would compile the same thousand modules for itself.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    limit_s = TEST_LIMIT_S
    if "--reference" in arguments:
        variables["EXECSERVER_REFERENCE"] = "1"
        limit_s = REFERENCE_TEST_LIMIT_S
    if "--long" in arguments:
        variables["EXECSERVER_LONG"] = "1"
        limit_s = LONG_TEST_LIMIT_S
    for_pytest = [word for word in arguments if word not in ("--long", "--reference")]
    if "--reference" in arguments and not any(word.startswith("tests") for word in for_pytest):
        for_pytest += ["tests/reference", "tests/e2e"]
    program, environment = _built()
    os.chdir(ROOT)
    command = [str(environment.python), "-m", "pytest"]
    variables[PROGRAM_VARIABLE] = program
    if any(word.startswith("tests") for word in for_pytest):
        return run_limited([*command, *for_pytest], variables, limit_s)
    # Not where pytest may be told to stop early; and a long run is there to find what is unreliable.
    second_go = not arguments and not os.environ.get("PYTEST_ADDOPTS")
    status = run_in_lanes([*command, *for_pytest], variables, limit_s, second_go)
    if "--long" in arguments:
        say("the end-to-end tests once more, on the source")
        status = worst(status, run_limited([*command, "tests/e2e"], dict(os.environ), limit_s))
        say("what each operation costs, against bench/budgets.toml")
        counting = [str(environment.python), "-m", "bench.cost", "--check"]
        status = worst(status, run_limited(counting, dict(os.environ), limit_s))
    as_other = _test_as_other_user(environment.python, for_pytest, "--long" in arguments, second_go)
    return worst(status, as_other)


def _test_as_other_user(python: Path, for_pytest: list[str], whole: bool, second_go: bool) -> int:
    """Run a part of the tests, or all of them, as an ordinary user in a closed home."""
    if reason := why_not():
        say(f"the tests as an ordinary user are left out: {reason}")
        return 0
    with home(Path(ROOT), python) as other:
        left_out = [] if whole else [f"--ignore={place}" for place in SAME_FOR_ALL]
        command = [str(other.python), "-m", "pytest", *for_pytest, *left_out]
        runner = Runner(command, other.variables(os.environ), other.project, other.user)
        if whole:
            return play_all(runner, LONG_TEST_LIMIT_S)
        return play(runner, PART, OTHER_USER_LIMIT_S, second_go=second_go)


def build(arguments: list[str]) -> int:
    """Make both files and tell their figures; or the files for other kinds of machines."""
    targets = _targets(arguments)
    if targets:
        words = [word for target in targets for word in ("--target", target)]
        return _call([str(prepare(Path(ROOT), "dev").python), "-m", "tools.freeze.build", *words])
    record = [word for word in arguments if word == "--record"]
    _expect_none("build", [word for word in arguments if word not in record])
    _, environment = _built()
    return _call([str(environment.python), "-m", "tools.freeze.measure", *record])


def _targets(arguments: list[str]) -> list[str]:
    """Return the kinds of machines that `build` is asked to build for; none: for this machine."""
    if arguments == ["--all"]:
        return list(MACHINES)
    if not arguments or arguments[0] != "--target":
        return []
    if len(arguments) != 2:
        raise Problem("`build --target` takes one kind of machine", f"name one of {', '.join(MACHINES)}")
    return [arguments[1]]


def wheels(arguments: list[str]) -> int:
    """Make the packages for pip, of the server and of the SDK."""
    _expect_none("wheels", arguments)
    return _call([str(prepare(Path(ROOT), "dev").python), "-m", "tools.sdk.wheels"])


def lint(arguments: list[str]) -> int:
    """Run every check, also after one has failed."""
    _expect_none("lint", arguments)
    python = str(prepare(Path(ROOT), "dev").python)
    failed = []
    for words in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        say(" ".join(words))
        if subprocess.run([python, "-m", *words], cwd=ROOT, check=False).returncode:
            failed.append(" ".join(words))
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    """Measure what `build` made."""
    program, environment = _built()
    module = BENCHES.get(arguments[0]) if arguments else None
    if module is None:
        module = "bench.compare"
    else:
        arguments = arguments[1:]
    return _call([str(environment.python), "-m", module, "--ours", program, *arguments])


def docs(arguments: list[str]) -> int:
    """Write the pages that are made from the code."""
    _expect_none("docs", arguments)
    environment = prepare(Path(ROOT), "run")
    statuses = [_call([str(environment.python), "-m", module]) for module in GENERATORS]
    return worst(*statuses)


VERBS = {
    "demo": demo,
    "run": run,
    "test": test,
    "build": build,
    "wheels": wheels,
    "lint": lint,
    "bench": bench,
    "docs": docs,
}


def main(argv: list[str]) -> int:
    """Run one verb; a Problem is told in plain words with its cure."""
    if sys.version_info[:2] < MINIMUM_PYTHON:
        return _start_with_a_newer_python(argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print((__doc__ or "").strip())
        return 0 if argv else 2
    if argv[0] not in VERBS:
        print(f"build.py: there is no `{argv[0]}`; there are {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        return VERBS[argv[0]](argv[1:])
    except Problem as problem:
        return tell(problem)
    except OSError as error:
        return tell(from_os_error(error, Path(ROOT)))
    except KeyboardInterrupt:
        return 130


def _built() -> tuple[str, Environment]:
    """Return dist/execserver, up to date, and the environment it was built in."""
    environment = prepare(Path(ROOT), "dev")
    # In the environment's own interpreter, because that is the one the file carries.
    if _call([str(environment.python), "-m", "tools.freeze.build"]):
        raise SystemExit(1)  # what is wrong has been told
    return os.path.join(ROOT, "dist", "execserver"), environment


def _built_or_source() -> tuple[list[str], Environment]:
    """Return the words that start the built file, or the source where the build fails."""
    try:
        program, environment = _built()
    except (Problem, SystemExit) as error:
        environment = prepare(Path(ROOT), "run")
        why = f" ({error.what})" if isinstance(error, Problem) else ""
        say(f"the file could not be built{why}; going on with the source")
        return [str(environment.python), "-m", "execserver"], environment
    return [program], environment


def _expect_none(verb: str, arguments: list[str]) -> None:
    if arguments:
        raise Problem(f"`{verb}` takes no arguments, got {' '.join(arguments)}", "leave them out")


def _call(command: list[str]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _start_with_a_newer_python(argv: list[str]) -> int:
    """Hand over to a newer interpreter if there is one.  What leads here must run on Python 3.7."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for minor in range(20, 10, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.call([found, "-c", check], stderr=subprocess.DEVNULL) == 0:
            os.execv(found, [found, os.path.abspath(__file__), *argv])
    have = ".".join(map(str, sys.version_info[:2]))
    say(
        f"this is Python {have}, and 3.11 or newer is needed\n"
        "  What to do: install one (e.g. `apt install python3.12 python3.12-venv`) and start again"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
