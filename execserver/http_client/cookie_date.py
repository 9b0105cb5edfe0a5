"""The date of a cookie's expiry, in any of the forms that servers write (RFC 6265, section 5.1.1).  Pure.

Not with the standard library's parser of mail dates, which the single-file program does not have.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TOKEN = re.compile(r"[0-9A-Za-z:\x80-\xff]+")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])")
_DAY = re.compile(r"([0-9]{1,2})(?![0-9])")
_YEAR = re.compile(r"([0-9]{2,4})(?![0-9])")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FIRST_YEAR = 1601


def seconds_since_1970(text: str) -> float | None:
    """Return the time that a text names, in UTC whatever zone it says; None if it names none."""
    time = day = year = None
    month = 0
    for token in _TOKEN.findall(text):
        # In this order: each part is the first token that can be it and nothing before it.
        if time is None and (found := _TIME.match(token)):
            time = found
        elif day is None and (found := _DAY.match(token)):
            day = found
        elif not month and token[:3].lower() in _MONTHS:
            month = _MONTHS.index(token[:3].lower()) + 1
        elif year is None and (found := _YEAR.match(token)):
            year = found
    if time is None or day is None or year is None or not month:
        return None
    return _seconds(_full_year(int(year[1])), month, int(day[1]), *map(int, time.groups()))


def _full_year(year: int) -> int:
    if 70 <= year <= 99:
        return year + 1900
    return year + 2000 if year < 70 else year


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    if year < _FIRST_YEAR:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
