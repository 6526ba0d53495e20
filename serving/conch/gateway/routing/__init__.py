"""Several servers of one model: which one answers next, which one is left alone, and who tries again elsewhere.

    prefixes.py     whose prefix cache has the start of a prompt     standing.py     a server's load and health
    addresses.py    servers that a name stands for
    pool.py         the choice, the probes, the figures              routed.py       a stream that may begin anew

Steers by what the gateway itself has seen: no server's figures, which could be old, decide anything.
"""
