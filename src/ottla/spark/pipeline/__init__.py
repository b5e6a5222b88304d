"""Pipelines: one YAML or Python file with sources, steps (SQL or DataFrame functions) and sinks.

`ottla pipeline` runs them.

`loader` turns a file into a `model.Plan`, with `yaml_file` or `builder`, `parser`, and the tables of
`fields`. Up to here Spark is not needed. `queries` builds DataFrames and queries from a plan. `runner`
starts, watches and stops them. `progress`, `status` and `causes` report their state and errors.
"""

from ottla.spark.pipeline.builder import Pipeline, setting
from ottla.spark.pipeline.model import PipelineError

__all__ = ["Pipeline", "PipelineError", "setting"]
