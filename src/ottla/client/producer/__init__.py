"""The producer: records in, acknowledgements out. `core` is its asyncio form, `blocking` the face with a thread."""
