"""Administration of a cluster. `core` is its asyncio form, `blocking` the face with a thread."""
