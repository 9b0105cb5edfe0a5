"""`execserver forward`: TCP connections through a box, both ways, and a SOCKS proxy."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import box_of, ended, program

HELP = """\
Forward TCP connections through a box, until ^C.

Usage: execserver forward [BOX] [OPTIONS] [[BIND:]PORT:HOST:PORT]...

3000:localhost:8000 listens on port 3000 here and leads to port 8000 of the box itself. BIND is the address to
listen on; without it only this machine can connect. Port 0 takes a free one; what listens is printed. BOX is
as for `execserver run`.

Options:
  -R, --reverse <FORWARD>   Listen on the box instead and lead to here: [BIND:]PORT:HOST:PORT.
  --socks <LISTEN>          Serve SOCKS 5 on [BIND:]PORT; its clients choose where to go from the box.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Options may be repeated. The box decides where it leads (`--allow-forward none|loopback|any`, loopback if not
said). A lost connection is resumed, and what is open goes on.

Exit status: 128 and the signal's number after ^C and other signals; 1 a port cannot be listened on; 2 wrong
usage; 255 the box cannot be reached, was lost, or forwards nothing.
"""

_USAGE = "[BOX] [OPTIONS] [[BIND:]PORT:HOST:PORT]..."


def main() -> int:
    """Forward; return the exit status."""
    return ended(_main)


def _main() -> int:
    from execserver.box.ports.forwards import parse, parse_listen

    found = program("forward", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    operands = list(parsed.operands)
    box = operands.pop(0) if operands and parse(operands[0]) is None else None
    here, there, proxies = [], [], []
    for operand in operands:
        if (forward := parse(operand)) is None:
            raise found.mistaken(Mistake(f"invalid value '{operand}': [BIND:]PORT:HOST:PORT is needed"))
        here.append(forward)
    for option, _, text in (word.partition("=") for word in parsed.words):
        if option == "--reverse":
            if (forward := parse(text)) is None:
                raise found.mistaken(Mistake(f"invalid value '{text}' for '--reverse <FORWARD>'"))
            there.append(forward)
        elif option == "--socks":
            if (place := parse_listen(text)) is None:
                raise found.mistaken(Mistake(f"invalid value '{text}' for '--socks <LISTEN>'"))
            proxies.append(place)
    if not (here or there or proxies):
        raise found.mistaken(Mistake("there is nothing to forward: PORT:HOST:PORT, --reverse or --socks"))
    from execserver.box.ports.forwarding import Forwarder

    return Forwarder(box_of(box, parsed)).run(here, there, proxies)
