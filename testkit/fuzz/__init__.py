"""The fuzzer: almost valid requests and data directories, and what must hold for all of them.

    valid_requests   valid requests of every API and version, for existing topics
    batches          record batches, valid ones and invalid ones with a valid CRC
    mutations        changes to the bytes of a request
    shapes           legal requests that are expensive or strange: repeated rows, huge counts, boundary strings
    admin            sequences of admin requests that keep state on the broker
    core             the core alone, in process: many requests, and the CPU time of each call
    process          a broker in its own process, and a connection to it
    witness          a well-behaved client in another process: its longest wait
    sockets          the attack over sockets, with the witness at the same time
    files            a data directory with damaged files

`python -m testkit.fuzz` runs them. A failure prints the command that repeats it.
"""
