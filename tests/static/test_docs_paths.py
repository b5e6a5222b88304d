"""ARCHITECTURE.md and the pages on decisions name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
# `log/segment.py`, `log/segment.py: append`, `tests/admin_tour.py`, `broker/api/`.
REFERENCE = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|md))?)(?:: (\w+))?`")
ARCHITECTURE_BYTES_MAX = 12 * 1024


def found(path: str) -> Path | None:
    for base in (ROOT / "src" / "ottla", ROOT):
        if (base / path).exists():
            return base / path
    return None


def names_in(module: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_function_exists(page: Path) -> None:
    missing = []
    for path, name in REFERENCE.findall(page.read_text()):
        module = found(path)
        if module is None or (name and name not in names_in(module)):
            missing.append(f"{path}: {name}" if name else path)
    assert missing == []


def test_the_map_stays_a_map() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= ARCHITECTURE_BYTES_MAX


def test_every_room_is_on_the_map() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "src" / "ottla"
    rooms = {path.name for path in package.iterdir() if any(path.glob("*.py"))}
    rooms |= {f"broker/{path.name}" for path in (package / "broker").iterdir() if any(path.glob("*.py"))}
    assert [room for room in sorted(rooms) if f"| `{room}/` |" not in page] == []
