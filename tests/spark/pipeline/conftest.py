"""What the tests of pipelines share."""

from tests.spark.pipeline.command import call

__all__ = ["call"]
