"""Fuzzing: requests and data directories that are nearly right, and what must hold whatever they are.

    making      valid requests of every API and version served, about topics that exist
    batches     record batches, good ones and ones that lie under a right CRC
    mutating    what is done to a request's bytes
    shapes      whole requests that are legal and expensive or strange: repeated rows, huge counts, boundary strings
    admin       sequences of admin calls that keep state on the broker
    core        the core alone, in process: numbers, and CPU time per call
    process     a broker in a process of its own, and a connection to it
    witness     a client that behaves, in another process: its longest wait
    sockets     the attack over sockets, with the witness beside it
    files       a data directory with damaged files

`python -m testkit.fuzz` runs them; whatever fails is repeated by its seed.
"""
