"""The producer. `core` is the asyncio producer, `sync` the blocking one."""
