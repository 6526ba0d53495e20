"""Thin client of the Triton contract over gRPC: generate, stream, cancel by leaving.

    with Client("127.0.0.1:8001") as client:
        for delta in client.stream("1, 2, 3,", max_tokens=16):
            print(delta.text, end="")

A prompt of token ids goes to the model `tensorrt_llm`, a text to `ensemble`. Knows nothing of the gateway, of
tokenizers or of the engine; errors come from the one tree, `conch_build.errors`.
"""

from conch.client.aio import AsyncClient, AsyncStream
from conch.client.feed import FedStream
from conch.client.generation import Delta, Result, Sampling, TopLogProbs
from conch.client.sync import Client

__all__ = ["AsyncClient", "AsyncStream", "Client", "Delta", "FedStream", "Result", "Sampling", "TopLogProbs"]
