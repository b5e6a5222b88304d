"""This broker in its cluster: registration, fencing, controlled shutdown, and the active controller."""
