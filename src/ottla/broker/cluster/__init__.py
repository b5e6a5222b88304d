"""This broker in its cluster: registration and fencing, controlled shutdown, and the work of the active controller."""
