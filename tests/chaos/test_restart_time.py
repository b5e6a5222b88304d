from pathlib import Path

from tests.crash.large_log import timed_restart_after_kill


def test_restart_after_kill_9_takes_under_a_second_with_1_gib_of_one_message_batches(
    tmp_path: Path, free_port: int
) -> None:
    seconds, written = timed_restart_after_kill(tmp_path / "data", free_port, 1 << 30)
    assert written >= 1 << 30
    assert seconds < 1.0
