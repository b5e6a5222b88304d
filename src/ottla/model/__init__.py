"""Names and numbers that all packages share. Imports nothing."""
