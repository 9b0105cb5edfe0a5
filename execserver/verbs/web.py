"""`execserver web`: a console for boxes, in the person's browser."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import box_of, ended, only_box, program

HELP = """\
Serve a console in the browser: boxes, their processes, terminals, files and ports, until ^C.

Usage: execserver web [BOX] [OPTIONS]

BOX is as for `execserver run`; those of the boxes file are shown besides. The console listens on 127.0.0.1.
Its URL holds a secret, is printed and is opened in the browser ($BROWSER, else xdg-open).

Options:
  --port <PORT>             Listen on this port instead of a free one.
  --no-open                 Do not open the browser.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Who has the URL can do on all these boxes what you can. Commands that the console has started end with it;
those started to be kept go on.

Exit status: 128 and the signal's number after ^C and other signals; 1 the port cannot be listened on; 2 wrong
usage; 255 the box cannot be reached.
"""
_USAGE = "[BOX] [OPTIONS]"
_LARGEST = 65535


def main() -> int:
    """Serve; return the exit status."""
    return ended(_main)


def _main() -> int:
    found = program("web", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    name = only_box(found, parsed)
    port = parsed.options.get("--port", "0")
    if not (port.isascii() and port.isdigit()) or int(port) > _LARGEST:
        raise found.mistaken(Mistake(f"invalid value '{port}' for '--port <PORT>'"))
    from execserver.box.web.console import Console

    return Console(box_of(name, parsed), int(port)).run(opens="--no-open" not in parsed.options)
