"""The rules of tests/conftest.py, shown on a few tests of its own in a pytest of its own."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"

TESTS = """
import pytest
from tests import turns

def test_runs(): pass

def test_skips(): pytest.skip("no such reason")

@pytest.mark.skip(reason="no such reason")
def test_skips_by_mark(): pass

@pytest.mark.xfail(reason="no such reason")
def test_expects_to_fail(): assert False

def test_skips_as_listed(): pytest.skip("a listed reason")

@pytest.mark.xfail(reason="a listed reason")
def test_expects_to_fail_as_listed(): assert False

def holds_the_loop(): turns.look_at(["the longest turn of the event loop: 9000 ms of CPU time"])

def test_holds_the_loop(): holds_the_loop()

@pytest.mark.long_turns("on purpose")
def test_holds_the_loop_on_purpose(): holds_the_loop()
"""
MODULE = 'import pytest\npytest.skip("no such reason", allow_module_level=True)\n'


def outcome(case: ElementTree.Element) -> str:
    return next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")


def test_only_listed_reasons_let_a_test_skip(tmp_path: Path) -> None:
    listed = CONFTEST.read_text().replace(
        "MAY_SKIP: dict[str, str] = {", 'MAY_SKIP = {"a listed reason": "",'
    )
    (tmp_path / "conftest.py").write_text(listed)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    markers = "markers =\n    long_turns: may hold the event loop\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {CONFTEST.parent.parent}\n{markers}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--junitxml=report.xml",
        "--continue-on-collection-errors",
        "-q",
    ]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    cases = ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    assert {case.get("name"): outcome(case) for case in cases} == {
        "test_runs": "passed",
        "test_skips": "failure",
        "test_skips_by_mark": "error",
        "test_expects_to_fail": "failure",
        "test_skips_as_listed": "skipped",
        "test_expects_to_fail_as_listed": "skipped",
        "test_holds_the_loop": "error",
        "test_holds_the_loop_on_purpose": "passed",
        "test_module": "error",
    }
