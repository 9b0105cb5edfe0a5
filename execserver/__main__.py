"""`python -m execserver`, and the script that the server starts again for its helpers."""

from __future__ import annotations

import sys

if not __package__:
    # Started by path with -I, which leaves the folder of the package out of the search path.
    sys.path.insert(0, __file__.rpartition("/execserver/")[0] or "/")

from execserver.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
