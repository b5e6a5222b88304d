import pytest

from ottla.spark.table_sinks.errors import BatchRefused, SinkError
from ottla.spark.table_sinks.progress import Progress, Verdict, check_repeated, check_sink_id, judge


def verdict(
    done: Progress | None, batch_id: int, query_id: str | None = "q", *, reset: bool = False
) -> Verdict:
    return judge(done, sink_id="sink", batch_id=batch_id, query_id=query_id, reset=reset)


def test_the_next_batch_runs_and_the_last_is_done() -> None:
    assert verdict(None, 0) is Verdict.RUN
    assert verdict(Progress(41, "q"), 41) is Verdict.DONE
    assert verdict(Progress(41, "q"), 42) is Verdict.RUN


def test_a_checkpoint_that_was_used_with_another_table_is_refused() -> None:
    with pytest.raises(BatchRefused, match="batch 41 of query q is refused: nothing has been written here"):
        verdict(None, 41)
    # Asked for: a sink that is added to a query which is under way.
    assert verdict(None, 41, reset=True) is Verdict.RUN
    # Outside of a streaming query the caller counts as it likes.
    assert verdict(None, 41, None) is Verdict.RUN


@pytest.mark.parametrize(
    ("batch_id", "says"), [(40, "another driver"), (43, "the batches between are missing")]
)
def test_any_other_batch_is_refused(batch_id: int, says: str) -> None:
    with pytest.raises(BatchRefused, match=says):
        verdict(Progress(41, "q"), batch_id)


def test_another_query_is_refused_whatever_its_batch() -> None:
    for batch_id in (0, 41, 42):
        with pytest.raises(BatchRefused, match="query new is refused: sink_id 'sink' belongs to query q"):
            verdict(Progress(41, "q"), batch_id, "new")


def test_a_query_that_is_not_known_is_judged_by_its_batch() -> None:
    assert verdict(Progress(41, None), 42, "q") is Verdict.RUN
    with pytest.raises(BatchRefused, match="reset=True"):
        verdict(Progress(41, None), 0, None)


def test_reset_lets_a_first_batch_in_and_no_later_one() -> None:
    assert verdict(Progress(41, "q"), 0, "new", reset=True) is Verdict.RUN
    with pytest.raises(BatchRefused):
        verdict(Progress(0, "new"), 41, "q", reset=True)
    assert verdict(Progress(0, "new"), 0, "new", reset=True) is Verdict.DONE
    assert verdict(Progress(41, "q"), 50, "q", reset=True) is Verdict.RUN


def test_reset_lets_no_old_driver_of_the_same_query_begin_again() -> None:
    with pytest.raises(BatchRefused, match="another driver") as refused:
        verdict(Progress(2, "q"), 0, "q", reset=True)
    assert "reset=True" not in str(refused.value)
    # Where it is not known whose batch it is, whoever sets it is believed.
    assert verdict(Progress(2, None), 0, "q", reset=True) is Verdict.RUN


def test_a_repeated_batch_must_not_reach_further() -> None:
    done = Progress(3, "q", {"t": {"0": 10, "1": 4}})
    for offsets in ({"t": {"0": 10, "1": 4}}, {"t": {"0": 9}}, {}, None, {"sources": [1]}):
        check_repeated(done, offsets, sink_id="sink", batch_id=3)
    for offsets, where in (
        ({"t": {"0": 11}}, "t-0 ended at 10, now at 11"),
        ({"u": {"0": 1}}, "u-0 ended at 0, now at 1"),
    ):
        with pytest.raises(BatchRefused, match=where):
            check_repeated(done, offsets, sink_id="sink", batch_id=3)


@pytest.mark.parametrize("sink_id", ["", "x" * 256])
def test_a_sink_id_is_a_short_text(sink_id: str) -> None:
    with pytest.raises(SinkError, match="1 to 255 bytes"):
        check_sink_id(sink_id)
