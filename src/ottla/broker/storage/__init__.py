"""The partitions on this broker and their logs: directories, maintenance, cleaner, moves, disk space."""
