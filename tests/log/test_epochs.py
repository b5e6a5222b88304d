import pytest

from ottla.log.epochs import LeaderEpochs

PAIRS = [(2, 10), (5, 20), (6, 35)]
END = 50


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (2, 20)),
        (5, (5, 35)),
        (6, (6, END)),
        (7, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(asked: int, answer: tuple[int, int]) -> None:
    """R1, KIP-279"""
    assert LeaderEpochs(list(PAIRS)).end_of(asked, END) == answer


def test_without_epochs_no_end_is_known() -> None:
    assert LeaderEpochs().end_of(0, END) == (-1, -1)
    assert LeaderEpochs().latest == -1
    assert LeaderEpochs().epoch_of(3) == -1


@pytest.mark.parametrize(("offset", "epoch"), [(0, -1), (9, -1), (10, 2), (19, 2), (20, 5), (34, 5), (99, 6)])
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert LeaderEpochs(list(PAIRS)).epoch_of(offset) == epoch


def test_an_epoch_is_assigned_once() -> None:
    epochs = LeaderEpochs()
    assert epochs.assign(1, 0)
    assert not epochs.assign(1, 5)
    assert not epochs.assign(0, 5)
    assert epochs.assign(4, 5)
    assert epochs.pairs == [(1, 0), (4, 5)]


def test_an_epoch_that_wrote_nothing_leaves_no_trace() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 7)])
    assert epochs.assign(3, 7)
    assert epochs.pairs == [(1, 0), (3, 7)]


def test_an_epoch_without_records_gives_way_to_older_ones_that_came_to_stand_there() -> None:
    """R1: its leader wrote nothing, and follows one that does not know this epoch and continues an older one."""
    epochs = LeaderEpochs([(3, 7), (4, 21)])
    assert epochs.assign(3, 21) and epochs.pairs == [(3, 7)]
    assert epochs.epoch_of(23) == 3
    epochs = LeaderEpochs([(2, 7), (4, 21), (5, 24)])
    assert epochs.assign(3, 21) and epochs.pairs == [(2, 7), (3, 21)]
    # Records after the start of a newer epoch do not undo it.
    assert not epochs.assign(2, 22) and epochs.pairs == [(2, 7), (3, 21)]


def test_truncation_at_either_end() -> None:
    epochs = LeaderEpochs(list(PAIRS))
    assert not epochs.truncate_end(36)
    assert epochs.truncate_end(35)
    assert epochs.pairs == PAIRS[:2]
    assert not epochs.truncate_start(10)
    assert epochs.truncate_start(15)
    assert epochs.pairs == [(2, 15), (5, 20)]
    assert epochs.truncate_start(20)
    assert epochs.pairs == [(5, 20)]
    assert epochs.truncate_start(99)
    assert epochs.pairs == [(5, 99)]


def test_the_file_is_kafkas() -> None:
    epochs = LeaderEpochs(list(PAIRS))
    assert epochs.render() == b"0\n3\n2 10\n5 20\n6 35\n"
    again = LeaderEpochs.parse(epochs.render())
    assert again is not None and again.pairs == PAIRS


@pytest.mark.parametrize(
    "data",
    [None, b"", b"0\n", b"0\n1\n", b"0\n2\n1 5\n", b"0\n1\n1 5", b"9\n1\n1 5\n", b"0\n2\n2 5\n1 9\n", b"0\n2\n1 9\n2 5\n",
     b"0\n2\n1 5\n1 9\n", b"0\n1\n1 x\n", b"0\n1\n1 5 7\n", b"0\nx\n1 5\n", b"\xff\xfe\n"],
)  # fmt: skip
def test_a_file_that_does_not_make_sense_is_none(data: bytes | None) -> None:
    assert LeaderEpochs.parse(data) is None
