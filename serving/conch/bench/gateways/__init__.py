"""Gateways side by side before the same upstream: what each adds to a request, and how many it carries.

    upstream.py    an OpenAI server that does next to nothing        load.py     requests over plain sockets, timed
    relay.py       the least that FastAPI can be: a bare relay       sides.py    how each gateway is started
    __main__.py    `python -m conch.bench.gateways`: one run, each side in turn, ratios

Knows nothing of engines: the upstream answers at once, so that what is left is the gateway's own.
"""
