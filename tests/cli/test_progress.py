import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from ottla.cli import progress
from ottla.cli.progress import ProgressLine


def test_a_line_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    reading, writing = pty.openpty()
    try:
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        with os.fdopen(writing, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            line = ProgressLine()
            line.show("x" * 100)
            line.show("y" * 39)
            line.show("short")
            line.clear()
            # What was written comes through a terminal in parts.
            drawn = b""
            while drawn.count(b"\r") < 5:
                drawn += os.read(reading, 10_000)
    finally:
        os.close(reading)
    assert drawn.decode().split("\r")[1:] == ["x" * 38 + "…", "y" * 39, "short".ljust(39), " " * 5, ""]


def test_a_terminal_of_unknown_width_gets_the_whole_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ProgressLine().show("x" * 300)
    assert capsys.readouterr().err == "\r" + "x" * 300
