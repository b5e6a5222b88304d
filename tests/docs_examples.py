"""The programs and commands that a page of the docs shows, as the tests run them."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
OFFSETS = DOCS / "offsets.md"
PIPELINES = DOCS / "pipelines.md"
TRANSACTIONS = DOCS / "transactions.md"


def programs(page: Path) -> list[str]:
    """The blocks of Python, in their order."""
    return blocks(page, "python")


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def indented(page: Path) -> list[str]:
    """The lines that are set apart: commands, and what they say."""
    return [
        line[4:]
        for line in re.sub(r"(?ms)^```.*?^```$", "", page.read_text()).splitlines()
        if line.startswith("    ")
    ]
