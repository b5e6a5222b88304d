"""The partitions on this broker: their log directories, maintenance, the log cleaner, moves between directories, disk space."""
