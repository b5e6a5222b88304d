"""The log of one partition on disk: segments, sparse indexes, producer state, leader epochs, recovery,
retention and compaction.

The package is pure: callers pass a `Disk` and the time. All files have Kafka's formats and names.
"""
