"""The consumer: positions, fetches and groups. `core` is its asyncio form, `blocking` the face with a thread."""
