"""Pipelines that are one file, in YAML or Python: sources, steps in SQL or over DataFrames, sinks. `ottla pipeline` runs them.

A file becomes a `model.Plan` (`loading`, `yaml_file`, `builder`, `reading` by the tables of `fields`), and nothing up to there needs Spark.
`building` makes DataFrames and queries of a plan; `running` starts, watches and stops them; `progress`, `status` and `causes` say in
plain words how they are getting on and why one failed.
"""

from ottla.spark.pipeline.builder import Pipeline, setting
from ottla.spark.pipeline.model import PipelineError

__all__ = ["Pipeline", "PipelineError", "setting"]
