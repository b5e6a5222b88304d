"""Shared fixtures of the pipeline tests."""

from tests.spark.pipeline.command import call

__all__ = ["call"]
