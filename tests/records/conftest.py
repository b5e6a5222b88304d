"""kafka-python calls deprecated functions while it is imported, which is no warning about us."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.partitioner.default
    import kafka.record.default_records  # noqa: F401
