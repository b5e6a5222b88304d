"""Reads topics: `spark.read` and `spark.readStream` with `format("ottla")`."""
