"""Entry point of `codex-exec-mcp-server`, which is `execserver mcp` too.

The order is the contract's: command line, Bash, rules, and only then the client (shell tool contract,
section 1).  The zygote is exec'ed before anything exists that it could inherit, and before gevent is loaded.
"""

from __future__ import annotations

import os
import sys

from execserver.mcp import command_line
from execserver.protocol.errors import os_error_text
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.settings import SettingError, Settings
from execserver.zygote.launch import ensure_stdio, start_zygote

_BY_HAND = """\
This is a server for an MCP client, which starts it and speaks JSON with it on stdin and stdout.
Ctrl-D ends it. `execserver mcp --help` tells more.
"""


def main() -> int:
    """Serve stdin and stdout until the input ends or a signal comes; return the exit status."""
    ensure_stdio()
    try:
        options = command_line.parse(sys.argv[1:], os.environ)
        settings = Settings.from_environment(os.environ)
    except command_line.Leave as leave:
        sys.stdout.write(leave.stdout)
        sys.stderr.write(leave.stderr)
        return leave.status
    except SettingError as error:
        return _failed(str(error))
    _end_at_once_on_signals()
    if os.isatty(0) and os.isatty(2):
        sys.stderr.write(_BY_HAND)
    try:
        return _serve(options, settings)
    except OSError as error:
        return _failed(os_error_text(error.errno) if error.errno else str(error))


def _serve(options: command_line.Options, settings: Settings) -> int:
    import resource  # late, as is all below: help and version come without it

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
        os.close(zygote.sock_fd)  # which is its end
        return _failed(str(error))

    interception = find_interception(options.bash, options.execve, paths)

    from execserver.mcp.call import ShellOptions  # late: with gevent
    from execserver.mcp.host import Host

    shell = ShellOptions(
        os.fsencode(options.bash),
        inherited,
        options.preserve_program_paths,
        os.fsencode(interception.wrapper),
    )
    doctor = paths.command("doctor", "--json")
    try:
        host = Host(settings, command, doctor, zygote, soft_nofile, shell, policy, interception)
        wrong = host.serve()
    finally:
        interception.close()
    return 0 if wrong is None else _failed(wrong)


def _failed(text: str) -> int:
    sys.stderr.write(f"Error: {text}\n")
    return 1


def _end_at_once_on_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until the server, whose import takes a while, handles them itself."""
    import signal

    def end(number: int, frame: object) -> None:
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
