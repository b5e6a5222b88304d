"""The admin client. `core` is the asyncio client, `sync` the blocking one."""
