"""Load on a gateway, and what came back: tok/s, TTFT, ITL.

http.py      one streamed request over a plain socket, cheap enough to share two cores with the server
load.py      many of them at a fixed concurrency
figures.py   percentiles and rates, pure
"""
