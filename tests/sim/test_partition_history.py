import pytest

from testkit.checkers.partition import Anomaly, PartitionHistory


def history(*, is_durable: bool = True) -> PartitionHistory:
    made = PartitionHistory("t-0", is_durable=is_durable)
    for number, value in enumerate((b"a", b"b", b"c")):
        made.send(value, "p", number, 1000 + number)
    return made


def anomaly(action: object, *arguments: object, **named: object) -> str:
    with pytest.raises(Anomaly) as raised:
        action(*arguments, **named)  # type: ignore[operator]
    return raised.value.kind


def test_a_whole_history_is_fine() -> None:
    made = history()
    made.acknowledge(b"a", 0)
    made.read(0, b"a")
    made.read(1, b"b")
    assert made.end_offset_min == 2
    made.check_all({0: b"a", 1: b"b", 2: b"c"}, log_start_offset=0, end_offset=2)


def test_two_values_at_one_offset() -> None:
    made = history()
    made.read(0, b"a")
    assert anomaly(made.acknowledge, b"b", 0) == "inconsistent-offsets"


def test_one_value_at_two_offsets() -> None:
    made = history()
    made.acknowledge(b"a", 0)
    assert anomaly(made.read, 1, b"a") == "duplicate"


def test_a_value_that_was_never_sent_here() -> None:
    assert anomaly(history().read, 0, b"of another topic") == "resurrected"


@pytest.mark.parametrize("how", ["acknowledge", "read"])
def test_something_known_is_gone(how: str) -> None:
    made = history()
    if how == "read":
        made.read(1, b"b")
    else:
        made.acknowledge(b"b", 1)
    assert anomaly(made.check_all, {0: b"a"}, log_start_offset=0, end_offset=2) == "lost-write"


def test_the_log_begins_later_than_anybody_asked_for() -> None:
    made = history()
    made.start_max = 1
    made.check_start(1)
    assert anomaly(made.check_start, 2) == "lost-write"


def test_a_gap() -> None:
    assert anomaly(history().check_all, {0: b"a", 2: b"c"}, log_start_offset=0, end_offset=0) == "poll-skip"


def test_a_producers_records_out_of_order() -> None:
    made = history()
    assert (
        anomaly(made.check_all, {0: b"b", 1: b"a"}, log_start_offset=0, end_offset=0) == "nonmonotonic-send"
    )


def test_a_power_cut_excuses_only_what_was_not_promised() -> None:
    durable, cached = history(), history(is_durable=False)
    for made in (durable, cached):
        made.acknowledge(b"a", 0)
        made.acknowledge(b"b", 1)
        made.power_was_cut(1)
    assert anomaly(durable.check_all, {0: b"a"}, log_start_offset=0, end_offset=2) == "lost-write"
    cached.check_all({0: b"a"}, log_start_offset=0, end_offset=2)
    cached.read(1, b"c")
    assert anomaly(cached.check_all, {}, log_start_offset=0, end_offset=2) == "lost-write"


def test_what_was_said_to_be_there() -> None:
    made = history()
    made.is_there(b"a")
    made.check_all({0: b"a"}, log_start_offset=0, end_offset=1)
    made = history()
    made.is_there(b"a")
    assert anomaly(made.check_all, {0: b"b"}, log_start_offset=0, end_offset=1) == "lost-write"
