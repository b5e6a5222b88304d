"""Parts of a run in parallel."""

from testkit.fuzz.pool import in_processes


def test_processes_are_replaced_and_the_run_goes_on() -> None:
    items = list(range(-100, 100))

    assert list(in_processes(abs, items, 2)) == [abs(item) for item in items]
