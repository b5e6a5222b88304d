"""Topics as tables and as streams: what `spark.read` and `spark.readStream` with `format("ottla")` run on."""
