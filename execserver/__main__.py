"""`python -m execserver`, and the script that the server starts for its helper processes."""

from __future__ import annotations

import sys

if not __package__:
    # Started by path with -I: Python then leaves the script's directory out of the module search path.
    sys.path.insert(0, __file__.rpartition("/execserver/")[0] or "/")

from execserver.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
