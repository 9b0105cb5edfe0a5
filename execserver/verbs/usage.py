"""The command line of a verb without a help text of its own: the program's help text describes it."""

from __future__ import annotations

from execserver.arguments import Program, read_table


def verb(usage: str, *flags: str, operands: tuple[str, ...] = ()) -> Program:
    """Return the command line of a verb: flags, which are optional, and operands, which are required.

    `usage` begins with the verb.
    """
    table = read_table("".join(f"  {line}\n" for line in (*flags, "-h, --help")))
    return Program("execserver", table, _help, operands=operands, usage=usage)


def _help() -> str:
    from execserver.cli_help import HELP  # late: neither a mistake nor the work itself needs the server's

    return HELP
