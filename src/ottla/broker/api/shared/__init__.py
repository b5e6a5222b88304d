"""What several APIs share; each file of `broker/api` is one API."""
