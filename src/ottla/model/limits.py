"""The bounds that hold everywhere, so that no input can ask for more than this.

Each is a ceiling of the protocol or of our own file formats; settings may only be tighter.
"""

from __future__ import annotations

from typing import Final

OFFSET_MAX: Final = 2**63 - 1
#: B4: a segment's records are addressed by a 31-bit offset relative to its base.
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
TOPIC_NAME_LENGTH_MAX: Final = 249
#: Requests of one connection that may wait for their answer before the broker stops reading from it.
REQUESTS_WAITING_PER_CONNECTION_MAX: Final = 256
#: Batches of one producer and partition whose sequence numbers are remembered (R14).
PRODUCER_BATCHES_REMEMBERED: Final = 5
PRODUCER_ID_BLOCK: Final = 1000
#: Nothing that a client compressed is unpacked beyond this.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
#: No batch that claims more records than this is looked into: seven bytes each, they would compress to nothing.
RECORDS_LOOKED_AT_MAX: Final = 1_000_000
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
