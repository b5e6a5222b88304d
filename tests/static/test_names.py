"""Names and sizes of modules: a file and a class are nouns, and a module can be read in one sitting."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "src" / "ottla", ROOT / "testkit"]
LINES_MAX = 600

# Words that end in -ing and are nouns. Listings are Kafka's own (GroupListing), a finding is a row of a report.
NOUNS = ("finding", "listing", "setting", "string")


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def is_gerund(name: str) -> bool:
    last = name.rstrip("_").rpartition("_")[2].lower()
    return last.endswith("ing") and not last.endswith(NOUNS)


def lines_of_code(path: Path) -> int:
    """The lines of a module without docstrings: those of public classes hold examples, and may be long."""
    text = path.read_text()
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    documented = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, owners) and ast.get_docstring(node)
    ]
    return len(text.splitlines()) - sum((each.end_lineno or 0) - each.lineno + 1 for each in documented)


def test_no_module_or_folder_is_a_gerund() -> None:
    names = {part for path in modules() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert sorted(name for name in names if is_gerund(name)) == []


def test_no_class_is_a_gerund() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and is_gerund(node.name)
    ]
    assert found == []


def test_no_module_is_too_long() -> None:
    sizes = {str(path.relative_to(ROOT)): lines_of_code(path) for path in modules()}
    assert {name: size for name, size in sizes.items() if size > LINES_MAX} == {}
