from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Check, Group, Outcome

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="test_good"/>
<testcase classname="b" name="test_good"/>
<testcase classname="a" name="test_bad"><failure/></testcase>
<testcase classname="a" name="test_bad"><error/></testcase>
<testcase classname="a" name="test_absent"><skipped/></testcase>
</testsuite></testsuites>"""


def test_counts_tests_not_entries(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert run_tests.counts(report) == Outcome(passed=2, failed=1, skipped=1)


def test_the_closing_line_sums_the_groups() -> None:
    table = run_tests.table({"a": Outcome(3, 0, 1, 2.0), "b": Outcome(4, 2, 0, 0.5)})
    assert table.splitlines()[-1] == "7 passed, 2 failed, 1 skipped"
    assert "2.5" in table


def test_a_failed_group_fails_the_run_and_does_not_stop_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    groups = (
        Group(name="bad", folders=(), checks=(Check("false", ("false",)),)),
        Group(name="good", folders=(), checks=(Check("true", ("true",)),)),
        Group(name="long", folders=(), checks=(Check("false", ("false",)),), default=False),
        Group(name="absent", folders=("no-such-folder",)),
    )
    monkeypatch.setattr(run_tests, "GROUPS", groups)
    assert run_tests.main([]) == 1
    printed = capfd.readouterr().out
    assert printed.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert "absent" not in printed
    assert run_tests.main(["good"]) == 0
    assert run_tests.main(["absent"]) == 0
    assert "absent: nothing here yet" in capfd.readouterr().out
