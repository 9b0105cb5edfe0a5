"""The row of a terminal that the cursor is in, as far as it is known from what was written.  No I/O.

Whatever is not known for sure is taken for unknown: the column, single cells, the rows below.  A cell is
`BLANK` if nothing is in it and its style is the plain one; the code of its ASCII character, with `STYLED`
added if it is not plain; or `UNKNOWN`.

Rows are told apart by going down only: below the deepest one that was written to, a terminal is blank, or
scrolls in a blank one.  That is so from the beginning: what a terminal showed below the line in which a
command began is nothing that it would keep.

A character that is not ASCII takes 0, 1 or 2 columns, which terminals do not agree upon.  It is taken for
two: so `column` is never too far left of the right margin, and cells right of such characters lie as far from
the cursor as they seem to.  What is left of them cannot be reached any more (`_floor`).
"""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = 0
BLANK: Final = 0x20
STYLED: Final = 0x80
_PLAIN: Final = 0
_TAB: Final = 8
_styled: Final = bytes(code | STYLED if 0x20 < code < 0x7F else UNKNOWN for code in range(256))


class LineModel:
    """One screen; `column` is None while it is not known, and the width behind the last column's character.

    `line` is another number whenever the cursor may be in another row.  `style` is not 0 unless characters
    are written in the plain one.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        self.column: int | None = None
        self.line = 0
        self.style = _PLAIN
        self.cells = bytearray(width)
        self._rows = rows
        self._floor = 0
        self._above = 0  # rows between the cursor and the deepest one that was written to, or more
        self._is_blank_below = True
        self._unseen = 0  # without that: after as many new rows the cursor is in the last one

    # Rows

    def lose(self) -> None:
        """Know nothing but the style: the cursor may be anywhere, and anything be there."""
        self._above, self._is_blank_below, self._unseen = 0, False, self._rows
        self.lose_row()

    def lose_row(self) -> None:
        """Know nothing of this row, nor where the cursor is in it."""
        self.column = None
        self._other_row(UNKNOWN)

    def _other_row(self, cell: int) -> None:
        self.line += 1
        self.cells[:] = bytes((cell,)) * self.width
        self._floor = 0

    def resize(self, rows: int, width: int) -> None:
        """Take another size: a terminal may break its lines anew."""
        is_last = self._above == 0 and self._is_blank_below and self._is_blank_right()
        self._rows, self.width, self.cells = rows, width, bytearray(width)
        if is_last:
            self.lose_row()
        else:
            self.lose()

    def _is_blank_right(self) -> bool:
        return self.column is not None and not self.cells[self.column :].strip(b" ")

    def down(self) -> None:
        """Go to the next row, which may scroll in."""
        self._next_row()
        if self.column == self.width:
            self.column = None  # some terminals still break the line

    def _next_row(self) -> None:
        is_new = self._above == 0
        is_blank = is_new and self._is_blank_below and self.style == _PLAIN
        if not is_new:
            self._above -= 1
        elif not self._is_blank_below:
            self._unseen -= 1
            self._is_blank_below = self._unseen <= 0
        if self._floor:
            self.column = None  # the columns of two rows cannot be compared
        self._other_row(BLANK if is_blank else UNKNOWN)

    def go_down(self, count: int) -> None:
        """Go down without scrolling."""
        self._leave_row()
        self._above = max(0, self._above - count)

    def go_up(self, count: int) -> None:
        """Go up; at the top of the screen perhaps not as far, and then the deepest row is nearer."""
        self._leave_row()
        self._above += count

    def _leave_row(self) -> None:
        column = None if self._floor or self.column == self.width else self.column
        self._other_row(UNKNOWN)
        self.column = column

    # Columns

    def write(self, text: bytes) -> None:
        """Take printable ASCII."""
        if self.column is None:
            self.lose_row()
            return
        end = self.column + len(text)
        if end > self.width:
            if self._floor:
                self.lose_row()  # it may have gone on in the next row, or not yet
                return
            breaks = (end - 1) // self.width
            for _ in range(breaks):
                self._next_row()
            end -= breaks * self.width
            text = text[-end:]
        self.cells[end - len(text) : end] = text if self.style == _PLAIN else text.translate(_styled)
        self.column = end

    def write_other(self, count: int) -> None:
        """Take so many characters that are not ASCII."""
        if self.column is None or self.column + 2 * count > self.width:
            self.lose_row()
            return
        end = self.column + 2 * count
        self.cells[self.column : end] = bytes(2 * count)
        self.column = self._floor = end

    def go_to(self, column: int) -> None:
        """Go to a column of this row."""
        if self._floor:
            self._other_row(UNKNOWN)
        self.column = min(column, self.width - 1)

    def go_right(self, count: int) -> None:
        """Go right, at most to the last column."""
        if self.column is None:
            return
        if self.column == self.width or (self._floor and self.column + count >= self.width):
            self.column = None
        else:
            self.column = min(self.column + count, self.width - 1)

    def go_left(self, count: int) -> None:
        """Go left, at most to the first column."""
        if self.column is None:
            return
        if self.column == self.width or (self._floor and self.column - count < self._floor):
            self.lose_row()
        else:
            self.column = max(0, self.column - count)

    def tab(self) -> None:
        """Go to the next tab stop, where all of them are at their usual places."""
        if self.column is None or self.column == self.width or self._floor:
            self.lose_row()
        else:
            self.column = min((self.column // _TAB + 1) * _TAB, self.width - 1)

    # Erasing

    def _erase(self, begin: int, end: int) -> None:
        end = min(end, self.width)
        if begin < end:
            # With another style some terminals paint the cells with its background.
            self.cells[begin:end] = bytes((BLANK if self.style == _PLAIN else UNKNOWN,)) * (end - begin)

    def erase_right(self) -> None:
        """Erase from the cursor to the end of the row."""
        if self.column is not None and self.column < self.width:
            self._erase(self.column, self.width)
        else:
            self.cells[:] = bytes(self.width)

    def erase_left(self) -> None:
        """Erase up to the cursor."""
        if self.column is not None and self.column < self.width and not self._floor:
            self._erase(0, self.column + 1)
        else:
            self.cells[:] = bytes(self.width)

    def erase_row(self) -> None:
        """Erase the row."""
        self._erase(0, self.width)

    def erase_below(self) -> None:
        """Erase from the cursor to the end of the screen."""
        self.erase_right()
        self._above, self._is_blank_below, self._unseen = 0, self.style == _PLAIN, self._rows

    def erase_all(self) -> None:
        """Erase the screen."""
        self.erase_row()
        self._above, self._is_blank_below, self._unseen = 0, self.style == _PLAIN, self._rows

    def erase(self, count: int) -> None:
        """Erase cells from the cursor on."""
        if self.column is not None and self.column < self.width:
            self._erase(self.column, self.column + count)
        else:
            self.cells[:] = bytes(self.width)

    def delete(self, count: int) -> None:
        """Take cells out; those right of them move left."""
        if self.column is None or self.column == self.width:
            self.cells[:] = bytes(self.width)
            return
        rest = self.cells[self.column + count :]
        filled = BLANK if self.style == _PLAIN and not self._floor else UNKNOWN
        self.cells[self.column :] = rest + bytes((filled,)) * (self.width - self.column - len(rest))

    def insert(self, count: int) -> None:
        """Put blank cells in; those right of the cursor move right."""
        if self.column is None or self.column == self.width:
            self.cells[:] = bytes(self.width)
            return
        count = min(count, self.width - self.column)
        filled = bytes((BLANK if self.style == _PLAIN else UNKNOWN,)) * count
        self.cells[self.column :] = (filled + self.cells[self.column :])[: self.width - self.column]
