"""Grammars in EBNF, made into what the library of guided decoding matches. Knows nothing of requests or tokens."""

from conch.engine.grammar.lark import to_lark

__all__ = ["to_lark"]
