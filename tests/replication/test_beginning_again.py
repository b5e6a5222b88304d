"""A follower whose records are all deleted follows a leader whose log begins where the follower's own files do (issue 8, bug 10)."""

from testkit.sim.quiet import Quiet

DELETE_RECORDS = 21


def test_a_new_segment_with_the_name_of_a_dropped_one_is_not_deleted() -> None:
    """DeleteRecords to the end, then an unclean election: the new leader never saw the deletion and begins at offset 0."""
    quiet = Quiet(2)
    quiet.create("t", (1, 2), unclean_leader_election_enable="true", file_delete_delay_ms="0")
    quiet.write("t", b"a", b"b")
    quiet.until(lambda: quiet.all_in_sync("t"))
    quiet.kill(2)
    quiet.until(lambda: quiet.partition("t").isr == (1,))
    for value in (b"c", b"d", b"e"):
        quiet.write("t", value)
    row = {"partition_index": 0, "offset": 5}
    topics = [{"name": "t", "partitions": [row]}]
    answer = quiet.call(1, DELETE_RECORDS, 2, {"topics": topics, "timeout": 5000})
    assert answer.topics[0].partitions[0].error_code == 0
    quiet.run(1000)
    quiet.kill(1)
    quiet.start(2)
    quiet.until(lambda: quiet.leader("t") == 2 and quiet.replica(2, "t").leading is not None)
    quiet.start(1)
    quiet.until(lambda: quiet.all_in_sync("t"))
    quiet.write("t", b"f")
    quiet.run(5000)
    # The log of the follower is there under its own name, and survives a restart.
    disk = quiet.disks[1]
    log = quiet.replica(1, "t").log
    assert not log.active.file.path.endswith(".deleted")
    assert log.active.file.path.rpartition("/")[2] in disk.list(log.directory)
    quiet.kill(1)
    quiet.start(1)
    quiet.cut(1, 2)
    quiet.until(lambda: quiet.members[1].joined and quiet.replica(1, "t").following is not None)
    assert quiet.replica(1, "t").log.next_offset == 3
