"""Request and response headers as bytes, without the parts of variable length.

    request   api key int16 | api version int16 | correlation id int32 | length of the client id int16 | client id | tags
    response  size int32 | correlation id int32 | tags

Tags are there in flexible versions only. Responses have none: one zero byte.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

REQUEST_HEADER: Final = Struct(">hhih")
RESPONSE_HEADER: Final = Struct(">ii")
FLEXIBLE_RESPONSE_HEADER: Final = Struct(">iib")
