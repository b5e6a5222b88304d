"""The consumer: positions, fetches and groups. `core` is the asyncio consumer, `sync` the blocking one."""
