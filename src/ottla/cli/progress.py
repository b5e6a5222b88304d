"""The progress line of a long command: rewritten in place on a terminal, not printed elsewhere."""

from __future__ import annotations

import os
import sys
import time

from ottla.cli.outcome import printable, say

REDRAW_S = 0.2


class ProgressLine:
    """`show` may be called at any rate; the line is drawn a few times per second."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._drawn = 0.0
        self._width = 0

    def due(self) -> bool:
        """Whether `show` would draw now, so that the caller can skip building the text."""
        return self._on and time.monotonic() - self._drawn >= REDRAW_S

    def show(self, text: str) -> None:
        if not self.due():
            return
        self._drawn = time.monotonic()
        text = self._cut(printable(text))
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def _cut(self, text: str) -> str:
        """The text cut to one line: a second line would stay when the first is rewritten."""
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        if columns < 2:
            return text
        # The terminal may have become narrower. The last column stays free, because some terminals wrap after
        # it.
        self._width = min(self._width, columns - 1)
        return text if len(text) < columns else f"{text[: columns - 2]}…"

    def clear(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def note(self, text: str) -> None:
        """Print a separate line above the progress line."""
        self.clear()
        say(text)


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted values lie."""
    if not sorted_values:
        return float("nan")
    return sorted_values[min(len(sorted_values) - 1, round(share * (len(sorted_values) - 1)))]
