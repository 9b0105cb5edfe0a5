"""Plays the recorded requests of `--ws-auth` against a server that really listens."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path

from tests.support.raw_http import RawHttp, Response
from tests.support.server_process import Flavour, ServerProcess
from tests.support.ws_auth import RECORDED_AT, Case, cases, lay_files, moved


def play_cases(flavour: Flavour, place: Path, cwd: Path) -> list[str]:
    """Play every recorded case on servers of this kind; return what differs."""
    lay_files("31-ws-auth-http", place)
    wrong = []
    for options, group in groupby(cases(place), lambda case: case.options):
        with ServerProcess(flavour, options=options, cwd=cwd) as server:
            wrong += [told for case in group if (told := _play(server.url, case, place))]
    return wrong


def _play(url: str, case: Case, place: Path) -> str:
    if case.name == "after the file changed: new":
        (place / "tok").write_text("changed\n")
    later = int(time.time()) - RECORDED_AT
    with RawHttp(url) as connection:
        response = connection.ask(moved(case.request, later))
    expected = (case.status, "" if case.status == 101 else case.body)
    given = (response.status, response.body.decode())
    same = given == expected and _headers(response).items() >= case.headers.items()
    return "" if same else f"{case.name}: {given} instead of {expected}, {response.headers}"


def _headers(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "date"}
