"""One partition's log on disk: segments, sparse indexes, producer states, leader epochs, recovery and
retention.

Pure: it is handed a `Disk` and the time. All files are in Kafka's own formats and under Kafka's names.
"""
