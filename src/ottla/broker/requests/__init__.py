"""Requests on their way through a broker: connections, long requests in slices, fetch sessions, the channel to the controller, and error isolation."""
