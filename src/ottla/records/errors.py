"""The one exception that reading records raises.

It has a module of its own because every module of this package raises it, and `record.py` imports the others.
"""

from __future__ import annotations


class CorruptRecords(ValueError):
    """The bytes are not a valid batch: broken structure, a bad CRC, or more data than the caller allows."""
