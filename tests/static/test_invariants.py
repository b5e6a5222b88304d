"""Every id of an invariant or claim that code, tests or docs cite is defined in docs/invariants.md.

An id is a capital letter A to H or R and a number of one or two digits without a leading zero: `R12`, `B4`. It is a
citation only as a word of its own: not within a longer word, a number or an escape (`KIP-101`, `0xB4`, `\\xB4`), and not
next to a hyphen (`v2-R1`, `B4-like`). Of a Python file comments, docstrings and the names of tests (`test_B5_…`) are
read, not code: `{T0: 5}` or a cell `A1` of a table in a string is no citation. Of a Markdown file everything outside of
code is read. Ids of the anomaly checker (G1a, G1c) have a letter after the digit, so they are words of another kind.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "invariants.md"
FOLDERS = ("src", "tests", "testkit", "docs")

CITATION = re.compile(r"(?<![\w\\.&#-])([A-HR][1-9][0-9]?)(?![\w-])")
TEST_NAME = re.compile(r"\bdef test_([A-HR][1-9][0-9]?)_")
DEFINITION = re.compile(r"^\| ([A-HR][0-9]+) \|", re.MULTILINE)
MARKDOWN_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def prose_of(source: str) -> Iterator[str]:
    """Comments and docstrings of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def cited_in_python(source: str) -> set[str]:
    found = set(TEST_NAME.findall(source))
    for text in prose_of(source):
        found.update(CITATION.findall(text))
    return found


def cited_in_markdown(text: str) -> set[str]:
    return set(CITATION.findall(MARKDOWN_CODE.sub(" ", text)))


def cited() -> dict[str, list[str]]:
    """Each id that is cited, with the files that cite it."""
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path in (PAGE, Path(__file__)) or path.suffix not in (".py", ".md"):
                continue
            text = path.read_text()
            if not (CITATION.search(text) or TEST_NAME.search(text)):
                # Most files cite nothing, and parsing all of them takes long.
                continue
            for each in cited_in_python(text) if path.suffix == ".py" else cited_in_markdown(text):
                found.setdefault(each, []).append(str(path.relative_to(ROOT)))
    return found


def test_every_cited_id_is_defined() -> None:
    defined = set(DEFINITION.findall(PAGE.read_text()))
    unknown = {each: paths for each, paths in cited().items() if each not in defined}
    assert not unknown, f"define these in {PAGE.name}, or correct the citation: {unknown}"


def test_ids_are_defined_once() -> None:
    definitions = DEFINITION.findall(PAGE.read_text())
    assert len(definitions) == len(set(definitions))


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("# R12: cuts a torn tail", {"R12"}),
        ("x = 1  # (R3, R4)", {"R3", "R4"}),
        ('"""Serves reads (A7, B2); see B4: it rolls."""', {"A7", "B2", "B4"}),
        ("def test_B5_flush() -> None: ...", {"B5"}),
        ("class Log:\n    #: E10/E11\n    x = 0", {"E10", "E11"}),
        ("# KIP-101, KIP-B4, 0xB4, \\xB4, R100, G1a, R01, B4-like", set()),
        ("cells = {'A1': B2}", set()),
    ],
)
def test_what_a_citation_is(source: str, ids: set[str]) -> None:
    assert cited_in_python(source) == ids


def test_code_in_markdown_is_not_read() -> None:
    assert cited_in_markdown("By R5 and `B1`:\n```\nC3\n```\n(D4)") == {"R5", "D4"}
