"""A broker as a process or inside one: the only place where the core meets its adapters."""
