"""docs/performance.md: replaces the measured text between its marks, with the command that produced it."""

import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs"
PAGE = FOLDER / "performance.md"


def write(name: str, text: str) -> None:
    """Write a report between the marks with this name."""
    command = "make bench"
    if sys.argv[1:]:
        command += f" ARGS='{' '.join(sys.argv[1:])}'"
    first, last = f"<!-- {name}: written by `make bench` -->", f"<!-- end of {name} -->"
    before, begin, rest = PAGE.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks its marks: {first} and {last}")
    PAGE.write_text(f"{before}{begin}\n\n`{command}`, {time.strftime('%Y-%m-%d')}: {text}\n\n{end}{after}")
