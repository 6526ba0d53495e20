"""Prompts and answers on engines of their own: the KV blocks of a prompt travel from the one to the other.

    params.py     what a context request gives to be given to a generation request: where the blocks are to be had
    depot.py      at the engine that read the prompt: keeps blocks until they are fetched, sends them over a socket
    fetch.py      at the engine that goes on: gets them, whole or not at all

Frames are `engine.state`'s bytes, digest included; nothing in them is code. Knows nothing of Triton and of engines.
"""
