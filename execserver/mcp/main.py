"""Entry point of `codex-exec-mcp-server`, which is also `execserver mcp`.

The shell tool contract gives the order: command line, Bash, rules, and only then the client.  The zygote is
executed before anything exists that it could inherit, and before gevent is loaded.
"""

from __future__ import annotations

import os
import sys

from execserver.leaving import failure, until_left
from execserver.mcp import command_line
from execserver.own_process import end_at_once_on_signals
from execserver.protocol.errors import os_error_text
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.settings import SettingError, Settings
from execserver.zygote.launch import ensure_stdio, start_zygote

_BY_HAND = """\
This is a server for an MCP client, which starts it and speaks JSON with it on stdin and stdout.
Ctrl-D ends it. `execserver mcp --help` tells more.
"""


def main() -> int:
    """Serve stdin and stdout until the input ends or a signal comes, and end the process."""
    ensure_stdio()
    status = until_left(_main)
    if sys.stderr is not None:  # it was closed when this process began
        sys.stderr.flush()
    # A thread may still remove what a dead owner left, on a file system that hangs.  Python frees what it
    # uses when it takes itself apart: a process that ended at once has died of SIGSEGV.
    os._exit(status)


def _main() -> int:
    try:
        options = command_line.parse(sys.argv[1:], os.environ)
        settings = Settings.from_environment(os.environ)
    except SettingError as error:
        raise failure(str(error)) from None
    end_at_once_on_signals()
    if os.isatty(0) and os.isatty(2):
        sys.stderr.write(_BY_HAND)
    try:
        return _serve(options, settings)
    except OSError as error:
        raise failure(os_error_text(error.errno) if error.errno else str(error)) from None


def _serve(options: command_line.Options, settings: Settings) -> int:
    import resource  # late, like everything below: help and version do without it

    rules = None
    if options.network_rules is not None:
        from execserver.egress.rules_reading import rules_of_file

        rules = rules_of_file(options.network_rules)
    inherited = dict(os.environb)
    soft_nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    paths = ExecServerRuntimePaths.detect()
    command = [*paths.zygote_command(), *filter(None, [inherited.get(b"XDG_RUNTIME_DIR")])]
    zygote = start_zygote(command, soft_nofile)

    from execserver import log
    from execserver.mcp.interception import find_interception
    from execserver.mcp.rules_files import RulesError, load_rules, rules_folders

    log.configure(log.level_from_environment(os.environ))
    try:
        policy = load_rules(rules_folders(os.environ))
    except RulesError as error:
        os.close(zygote.sock_fd)  # the zygote sees the end of file and exits
        raise failure(str(error)) from None

    interception = find_interception(options.bash, options.execve, paths)

    from execserver.mcp.call import ShellOptions  # late: with gevent
    from execserver.mcp.host import Host

    shell = ShellOptions(
        os.fsencode(options.bash),
        inherited,
        options.preserve_program_paths,
        os.fsencode(interception.wrapper),
        rules,
    )
    doctor = paths.doctor_command()
    try:
        host = Host(settings, command, doctor, zygote, soft_nofile, shell, policy, interception)
        wrong = host.serve()
    finally:
        interception.close()
    if wrong is not None:
        raise failure(wrong)
    return 0
