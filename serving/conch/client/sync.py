"""The synchronous client. Leaving a stream, however that happens, cancels the request in the engine."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from conch.client import wire
from conch.client.asking import build_probe, build_request
from conch.client.errors import from_rpc
from conch.client.generation import Delta, Result, Sampling, check_single, joined
from conch.client.reading import Reader, check


class Client:
    """A connection to Triton's gRPC port, `host:port`. Threads may share it; `close` it, or use `with`."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self.url = url
        self.timeout = timeout
        self._channel = grpc.insecure_channel(url, options=wire.CHANNEL_OPTIONS)
        self._infer = self._channel.stream_stream(
            wire.STREAM_METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **sampling: Any,
    ) -> Result:
        """The whole answer. `sampling` holds fields of `Sampling`; `timeout` is in seconds.

        Raises RequestError for what the model refuses, and ServiceError or one of its kinds.
        """
        options = Sampling(**sampling)
        check_single(options)
        return joined(list(self._deltas(prompt, options, timeout, request_id, streaming=False)))

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **sampling: Any,
    ) -> Iterator[Delta]:
        """The answer as it is made; the last delta has a finish reason. Raises what `generate` raises."""
        return self._deltas(prompt, Sampling(**sampling), timeout, request_id, streaming=True)

    def probe(self, *, timeout: float = 2.0) -> None:
        """Ask the engine for a sign of life; raises ServiceError, or one of its kinds, without one."""
        call = self._infer(iter((build_probe(uuid.uuid4().hex),)), timeout=timeout)
        try:
            for message in call:
                check(message)
        except grpc.RpcError as error:
            raise from_rpc(error, self.url) from None

    def _deltas(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        timeout: float | None,
        request_id: str | None,
        *,
        streaming: bool,
    ) -> Iterator[Delta]:
        request = build_request(prompt, sampling, request_id=request_id or uuid.uuid4().hex, streaming=streaming)
        reader = Reader(sampling.n)
        call = self._infer(iter((request,)), timeout=timeout or self.timeout)
        try:
            for message in call:
                yield reader.read(message)
            reader.end()
        except grpc.RpcError as error:
            raise from_rpc(error, self.url) from None
        finally:
            if reader.finished:
                with contextlib.suppress(grpc.RpcError):
                    next(call, None)
            call.cancel()

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
