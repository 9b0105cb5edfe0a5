from __future__ import annotations

import pytest

from execserver.http_client.cookie_date import seconds_since_1970

WANTED = 1_800_000_100.0


@pytest.mark.parametrize(
    "text",
    [
        "Fri, 15 Jan 2027 08:01:40 GMT",
        "Fri, 15-Jan-27 08:01:40 GMT",
        "Friday, 15-Jan-27 08:01:40 GMT",
        "Fri Jan 15 08:01:40 2027",
        "08:01:40 15 january 2027",
        "Fri, 15 Jan 2027 8:1:40",
    ],
)
def test_every_form_is_read(text: str) -> None:
    assert seconds_since_1970(text) == WANTED


def test_short_years_are_of_this_century_or_the_last() -> None:
    assert seconds_since_1970("Thu, 01 Jan 70 00:00:00") == 0.0
    assert seconds_since_1970("Mon, 01 Jan 69 00:00:00") == seconds_since_1970("1 Jan 2069 00:00:00")


@pytest.mark.parametrize(
    "text",
    [
        *("", "never", "1 2 3", "31 Feb 2027 00:00:00", "1 Jan 1600 00:00:00", "1 Jan 2027 24:00:00"),
        *("1 Jan 2027", "Jan 2027 00:00:00", "1 2027 00:00:00", "1 Jan 00:00:00"),
    ],
)
def test_what_is_no_date_is_none(text: str) -> None:
    assert seconds_since_1970(text) is None
