"""Our server, at which every client has the grant that the variable GRANT holds as JSON.

The listener's proofs are tested elsewhere; here it is about what a grant means once it is there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment

VARIABLE = "GRANT"


def granted_server(home: Path, **grant: object) -> ServerProcess:
    """Start a server whose user has this home and whose clients have this grant."""
    argv = (sys.executable, "-m", "tests.support.granted_server")
    env = {**base_environment(), "HOME": str(home), VARIABLE: json.dumps(grant)}
    return ServerProcess(Flavour(OURS.name, argv, OURS.exit_on_terminate), env=env)


def main() -> int:
    """Serve as the command line says."""
    from execserver import cli
    from execserver.access.identity import Grant, Identity
    from execserver.handlers import context

    grant = json.loads(os.environ.pop(VARIABLE))
    if grant.get("roots") is not None:
        grant["roots"] = tuple(grant["roots"])
    vars(context)["NOBODY"] = Identity("token", "tested", Grant(**grant))
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
