"""`execserver relay token`: who may use a relay, in its token file or in the engine of a cluster."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

from execserver.arguments import Program, missing, read_table
from execserver.leaving import failure, put
from execserver.verbs import relay_engine
from execserver.verbs.usage import carry_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.relay.engine.tokens import EngineTokens

HELP = """\
Manage who may use the relay. A token is for one environment and a role; only its hash is kept.

Usage: execserver relay token create --environment-id <ID> [OPTIONS]
       execserver relay token list [OPTIONS]
       execserver relay token revoke <TOKEN-ID> [OPTIONS]

Options:
  --environment-id <ID>     The environment the token is for: letters, digits, `_` and `-`.
  --role <ROLE>             executor (the machine), harness (its users) or both [default: both]
  --token-file <FILE>       The file of the relay [default: ~/.config/execserver/relay-tokens.json]
  --engine <URL>            Instead of a file, the engine that several relays share; see `relay --help`.
  --engine-auth <FILE>      User and password for the engine; see `relay --help`.
  -h, --help                Print this text and exit.

The token is printed once and cannot be shown again. A running relay notices a change of the file within two
seconds, relays with an engine at once, and closes what was opened with a revoked token.
"""

_PROGRAM = "execserver relay token"
_CHOICES: dict[str, tuple[str, ...]] = {"--role": ("executor", "harness", "both")}


def manage(given: list[str]) -> int:
    """Do what the arguments behind `token` say; return 0, or 1 for a revocation no replica has confirmed."""
    from execserver.relay.errors import CannotServe

    actions = {"create": _create, "list": _list, "revoke": _revoke}
    try:
        return carry_out(_PROGRAM, given, actions, HELP)
    except CannotServe as error:
        raise failure(str(error)) from None


def token_file(options: dict[str, str]) -> str:
    """Return the token file that options name."""
    from execserver.relay.tokens import default_token_file

    return options.get("--token-file") or default_token_file(os.environ)


def _program(action: str, operands: tuple[str, ...] = (), usage: str | None = None) -> Program:
    table = read_table(HELP, choices=_CHOICES)
    return Program(f"{_PROGRAM} {action}", table, lambda: HELP, operands=operands, usage=usage)


def _place(options: dict[str, str]) -> str:
    """Return where the tokens are, as it is shown: a file, or an engine."""
    if "--engine" not in options:
        if "--engine-auth" in options:
            raise failure("--engine-auth needs --engine")
        return token_file(options)
    if "--token-file" in options:
        raise failure("--engine and --token-file: tokens are in one place, so give one of the two")
    from execserver.relay.engine.address import address_of

    return address_of(options["--engine"]).shown


@contextmanager
def _in_engine(options: dict[str, str]) -> Iterator[EngineTokens | None]:
    """Yield the tokens of the engine that options name; None if they name none."""
    if "--engine" not in options:
        yield None
        return
    from execserver.relay.engine.tokens import EngineTokens

    engine = relay_engine.connected(options)
    try:
        yield EngineTokens(engine)
    finally:
        engine.close()


def _create(given: list[str]) -> int:
    from execserver.relay import tokens

    program = _program("create", usage="--environment-id <ID> [OPTIONS]")
    options = program.parse(given).options
    if "--environment-id" not in options:
        raise program.mistaken(missing(("--environment-id <ID>",)))
    place = _place(options)
    wanted = options["--environment-id"], options.get("--role", tokens.BOTH)
    try:
        with _in_engine(options) as engine:
            if engine is None:
                token, text = tokens.create(place, *wanted)
            else:
                token, text = tokens.new_token(*wanted)
                engine.add(token)
    except ValueError as error:
        raise failure(str(error)) from None
    put(f"{text}\n")  # the token alone, so that a script can read it
    note = f"token {token.id} for environment {token.environment_id}, role {token.role}, in {place}"
    sys.stderr.write(f"{note}; it is shown this once\n")
    return 0


def _list(given: list[str]) -> int:
    from execserver.relay import tokens

    options = _program("list").parse(given).options
    place = _place(options)
    with _in_engine(options) as engine:
        found = tokens.read(place) if engine is None else engine.all()
    for token in found:
        sys.stdout.write(f"{token.id}  {token.role:<8}  {token.created}  {token.environment_id}\n")
    return 0


def _revoke(given: list[str]) -> int:
    from execserver.relay import tokens

    parsed = _program("revoke", ("<TOKEN-ID>",), "<TOKEN-ID> [OPTIONS]").parse(given)
    (name,) = parsed.operands
    place = _place(parsed.options)
    with _in_engine(parsed.options) as engine:
        removed, confirmed = (tokens.revoke(place, name), True) if engine is None else engine.revoke(name)
    if not removed:
        raise failure(f"there is no token {name} in {place}; `relay token list` shows what there is")
    if not confirmed:
        raise failure(
            f"token {name} is revoked, but no replica has confirmed it within a second",
            "look at the replicas; if one becomes primary now, list the tokens there and revoke it again",
        )
    sys.stderr.write(f"token {name} is revoked\n")
    return 0
