"""Calls of tools: how models write them, how they are held to it, and how they are read again.

    markup.py    the ways of writing, by the families of chat templates
    enforce.py   a way of writing as a structural tag, which guided decoding enforces
    reader.py    a growing answer taken apart into text and calls
    json_end.py  where a JSON value ends in a text that still grows

Knows nothing of HTTP or of tokens.
"""
