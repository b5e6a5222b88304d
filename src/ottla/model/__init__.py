"""Names and numbers that every room shares. Imports nothing."""
