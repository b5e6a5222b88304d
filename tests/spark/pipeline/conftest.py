"""What the tests of pipelines share."""

from tests.spark.pipeline.calling import call

__all__ = ["call"]
