"""A broker as a process, or embedded in one: core and runtime are put together here."""
