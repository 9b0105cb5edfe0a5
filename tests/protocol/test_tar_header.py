"""The parts of a tar header, whatever bytes they are."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execserver.protocol.tar_header import BLOCK, BadHeader, decimal, is_sound, number, records


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"0000644\0", 0o644),
        (b"     12 ", 0o12),
        (b" 7\0 9999", 7),
        (b"        ", 0),
        (b"\0" * 8, 0),
        (b"\200" + bytes(6) + b"\5", 5),
        (b"\377" * 11 + b"\376", -2),
    ],
)
def test_numbers_are_octal_or_of_256_and_may_be_negative(field: bytes, value: int) -> None:
    assert number(field) == value
    assert tarfile.nti(field) == value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "field", [b"0000648\0", b"-0000644", b"+0000644", b"0o000644", b"1_0     ", b"\201\0\0\1"]
)
def test_what_is_no_number_is_refused(field: bytes) -> None:
    with pytest.raises(BadHeader):
        number(field)


@given(st.integers(-(2**60), 2**60))
def test_a_number_that_tarfile_writes_is_read(value: int) -> None:
    assert number(tarfile.itn(value, 12, tarfile.GNU_FORMAT)) == value  # type: ignore[attr-defined]


def test_a_checksum_counts_bytes_with_or_without_a_sign() -> None:
    info = tarfile.TarInfo("\xe9" * 20)
    block = info.tobuf(tarfile.USTAR_FORMAT, "latin-1")
    assert is_sound(block)
    signed = block[:148] + b"%06o\0 " % (number(block[148:156]) - 20 * 256) + block[156:]
    assert is_sound(signed)
    assert not is_sound(block[:148] + b"0000001\0" + block[156:])
    assert len(block) == BLOCK


@given(st.binary(min_size=BLOCK, max_size=BLOCK), st.integers(-1, 1))
@example(b"\xff" * BLOCK, 0)
@example(bytes(BLOCK), 0)
def test_a_checksum_is_that_of_all_other_bytes(block: bytes, wrong: int) -> None:
    right = sum(block[:148]) + sum(block[156:]) + 8 * 32
    assert is_sound(block[:148] + b"%07o\0" % (right + wrong) + block[156:]) == (not wrong)


def test_records_come_in_their_order_up_to_a_zero() -> None:
    data = b"11 path=ab\n6 a=\n\n20 path=a=b 9 x=y\nz\n"
    assert list(records(data)) == [(b"path", b"ab"), (b"a", b"\n"), (b"path", b"a=b 9 x=y\nz")]
    assert list(records(data[:11] + bytes(90))) == [(b"path", b"ab")]
    assert list(records(b"")) == []


@pytest.mark.parametrize(
    "data",
    [
        b"5",
        b"5 a=b",
        b"7 a=b\n",
        b"6 a=b ",
        b"5 ab\n6 a=b\n",
        b"4 =\n",
        b"0 a=b\n",
        b" a=b\n",
        b"x a=b\n",
        b"-6 a=b\n",
        b"\xb26 a=b\n",
        b"000000006 a=b\n",
        b"1" * 60_000,
        b"2 " * 30_000 + b"=",
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(BadHeader):
        list(records(data))


def test_a_decimal_number_has_digits_only() -> None:
    assert decimal(b"0123") == 123
    for bad in (b"", b"-1", b"1.5", b"\xb2", b"1" * 20):
        with pytest.raises(BadHeader):
            decimal(bad)
