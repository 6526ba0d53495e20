"""What several gateways have in common through Redis; without it each is for itself, and all goes on.

store.py      the connection: never waited for longer than a moment, left alone while it is away
limits.py     what keys have taken, of all gateways together
answers.py    whole answers, given again to a request that repeats another one
"""
