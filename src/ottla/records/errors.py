"""The one exception that reading records raises, whatever the bytes hold.

It lives apart from the codecs because every module of this room raises it and `record.py` imports the
others.
"""

from __future__ import annotations


class CorruptRecords(ValueError):
    """The bytes are no valid batch: broken structure, a bad CRC, or more than the caller allows."""
