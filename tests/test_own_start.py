"""The words with which this process was started, in each form of the program."""

from __future__ import annotations

import sys

import pytest

from execserver.own_start import own_start


@pytest.mark.parametrize(
    ("words", "before", "arguments"),
    [
        (["python3", "-m", "execserver", "--metrics", "x"], 3, 2),
        (["python3", "-I", "-S", "/x/__main__.py", "--listen", "stdio"], 4, 2),
        (["python3", "-X", "dev", "-W", "error", "/venv/bin/execserver"], 6, 0),
        (["python3", "./execserver.pyz", "-c", "a=b"], 2, 2),
    ],
)
def test_from_source_the_interpreter_and_its_words(
    words: list[str], before: int, arguments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.delattr(sys, "frozen", raising=False)
    found = own_start()
    assert (found.words, found.arguments) == (words[:before], words[before:])
    assert len(found.arguments) == arguments
    assert (found.file, found.lock) == (sys.executable, None)


def test_the_file_that_was_started_and_the_name_it_was_called_by(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "/cache/tree/boot.pyc"
    frozen = (
        "/cache/tree/lib/ld",
        "--library-path",
        "/cache/tree/python3",
        script,
        "-1",
        "/own",
        "execserver",
    )
    words = [
        "/cache/tree/python3",
        "-I",
        "-S",
        script,
        "4",
        "/opt/execserver",
        "codex-exec-server",
        "--metrics",
        "x",
    ]
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setattr(sys, "orig_argv", words)
    found = own_start()
    assert found == ("/opt/execserver", ["codex-exec-server"], ["--metrics", "x"], 4)
    monkeypatch.setattr(sys, "orig_argv", [*words[:4], "-1", *words[5:]])
    assert own_start().lock is None
