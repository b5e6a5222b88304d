"""Fuzzing: requests and data directories that are nearly right, and what must hold whatever they are.

    making      valid requests of every API and version served, about topics that exist
    batches     record batches, good ones and ones that lie under a right CRC
    mutating    what is done to a request's bytes
    core        the core alone, in process: numbers
    sockets     a broker in a process of its own, with a witness beside the garbage
    files       a data directory with damaged files

`python -m ottla.testing.fuzz` runs them; whatever fails is repeated by its seed.
"""
