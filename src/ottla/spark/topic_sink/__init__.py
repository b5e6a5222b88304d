"""Writes rows to topics: tasks encode and stage them, one committer writes them in a transaction.

`docs/spark-sink.md` describes the guarantees.
"""
