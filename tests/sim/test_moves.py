"""A partition moves to another log directory, and the power is cut before every single step.

After each start there is one log with everything acknowledged: the old one or the new one, never none, never
both; and the move completes.
"""

import pytest

from testkit.sim.node import DATA_DIR, OTHER_DIR
from tests.sim.stories import TwoDirectories, cut_at_each_step


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_before_any_step_of_a_move_loses_nothing(seed: int) -> None:
    steps = cut_at_each_step(seed, is_strict=seed % 2 == 0)
    assert steps > 60


def test_one_log_and_nothing_left_over_when_it_is_done() -> None:
    story = TwoDirectories(1, is_strict=True)
    source = story.home()
    target = OTHER_DIR if source == DATA_DIR else DATA_DIR
    log = story.node.broker.partitions.by_name["t"].replicas[0].log
    bases, epochs, producers = list(log.bases), log.epochs.render(), log.producers.render()
    story.move(target)
    story.finish_move(target)
    story.rest(3000)
    log = story.node.broker.partitions.by_name["t"].replicas[0].log
    assert (
        log.bases[: len(bases)] == bases
        and log.epochs.render() == epochs
        and log.producers.render() == producers
    )
    assert not any(name.startswith("t-0") for name in story.disk.list(source))
    assert [name for name in story.disk.list(target) if name.startswith("t-0")] == ["t-0"]
    story.node.stop()
    story.start()
    assert all(directory.clean for directory in story.node.broker.directories.all)
    story.check()


def test_the_directory_of_the_copy_fails_and_the_source_goes_on() -> None:
    story = TwoDirectories(1, is_strict=True)
    source = story.home()
    target = OTHER_DIR if source == DATA_DIR else DATA_DIR
    story.disk.failing_sync = f"{target}/t-0."
    story.move(target)
    story.rest(1000)
    assert [directory.path for directory in story.node.broker.directories.offline] == [target]
    story.produce(b"still here")
    story.check()


def test_the_directory_of_the_source_fails_and_the_copy_is_not_taken_for_the_log() -> None:
    story = TwoDirectories(1, is_strict=True)
    source = story.home()
    target = OTHER_DIR if source == DATA_DIR else DATA_DIR
    # The copy has begun, and does not get far.
    story.move(target)
    while not any(name.endswith("-future") for name in story.disk.list(target)):
        assert story.world.step()
    story.node.delays.job_ms = 1 << 40
    story.disk.failing_sync = f"{source}/t-0/"
    story.produce(b"lost")
    assert [directory.path for directory in story.node.broker.directories.offline] == [source]
    assert b"lost" not in story.acknowledged
    assert any(name.endswith("-future") for name in story.disk.list(target))
    story.cut_and_start()
    assert story.home() == source
    story.check()
