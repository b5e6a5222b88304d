"""Rows into topics: tasks encode and stage, one committer makes it count. `docs/spark-sink.md` tells what is guaranteed."""
