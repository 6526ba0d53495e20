"""The asynchronous client. Leaving a stream, or cancelling the task that reads it, cancels the request."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from conch.client import wire
from conch.client.asking import build_adapter_command, build_probe, build_request
from conch.client.cpp_backend import CppBackend, CppReader
from conch.client.errors import from_rpc
from conch.client.feed import FedStream, Feed
from conch.client.generation import Delta, Result, Sampling, check_single, joined
from conch.client.reading import Reader, check, read_adapters
from conch.life import means_dead


class AsyncStream:
    """An answer as it is made: `async for delta in stream`. The last delta has a finish reason.

    A class and not an async generator: half the cost a token, and dropping it cancels at once.
    """

    __slots__ = ("_call", "_reader", "_url")

    def __init__(self, call: Any, url: str, reader: Reader | CppReader) -> None:
        self._call = call
        self._reader = reader
        self._url = url

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        if self._reader.finished:
            raise StopAsyncIteration
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise from_rpc(error, self._url) from None
        if message is grpc.aio.EOF:
            self._reader.end()
            raise StopAsyncIteration
        try:
            return self._reader.read(message)
        finally:
            if self._reader.finished:
                with contextlib.suppress(grpc.RpcError):
                    await self._call.read()

    def cancel(self) -> None:
        """Stop the request in the engine; does nothing after the end."""
        self._call.cancel()

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._call.cancel()


class AsyncClient:
    """A connection to Triton's gRPC port, `host:port`, in one event loop; `close` it or use `async with`.

    With `backend` the model of token ids is TensorRT-LLM's own; None: one of Conch's.
    """

    def __init__(self, url: str, *, timeout: float | None = None, backend: CppBackend | None = None) -> None:
        self.url = url
        self.timeout = timeout
        self._backend = backend
        self._channel = grpc.aio.insecure_channel(url, options=wire.CHANNEL_OPTIONS)
        self._infer = self._channel.stream_stream(
            wire.STREAM_METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        self._feed: Feed | None = None

    async def use_feed(self, *, timeout: float = 2.0) -> bool:
        """Let streams of tokens share one call from now on, if the model can; worth it for many at once.

        Returns whether it can. Raises ServiceError, or one of its kinds, when Triton does not answer.
        """
        ask = self._channel.unary_unary(
            wire.METADATA_METHOD,
            request_serializer=pb.ModelMetadataRequest.SerializeToString,
            response_deserializer=pb.ModelMetadataResponse.FromString,
        )
        try:
            told = await ask(pb.ModelMetadataRequest(name="tensorrt_llm"), timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc(error, self.url) from None
        if any(tensor.name == "conch_feed" for tensor in told.inputs):
            self._feed = self._feed or Feed(self._infer, self.url)
        return self._feed is not None

    async def generate(
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
        stream = self.open(prompt, options, timeout=timeout, request_id=request_id, streaming=False)
        async with stream:
            return joined([delta async for delta in stream])

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        **sampling: Any,
    ) -> AsyncStream | FedStream:
        """The answer as it is made. Raises, while it is read, what `generate` raises."""
        return self.open(prompt, Sampling(**sampling), timeout=timeout, request_id=request_id)

    def open(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        streaming: bool = True,
    ) -> AsyncStream | FedStream:
        """`stream` with a ready `Sampling`. Not `streaming`: one delta holds the whole answer."""
        fed = self._feed if streaming and sampling.is_plain and not isinstance(prompt, str) else None
        place = fed.place() if fed is not None else None
        backend = None if isinstance(prompt, str) else self._backend
        request = build_request(
            prompt,
            sampling,
            request_id=request_id or uuid.uuid4().hex,
            streaming=streaming,
            feed=place,
            backend=backend,
        )
        call = self._infer(iter((request,)), timeout=timeout or self.timeout)
        if fed is not None and place is not None:
            return FedStream(call, self.url, fed, place[1])
        return AsyncStream(call, self.url, backend.reader(sampling) if backend else Reader(sampling.n))

    async def probe(self, *, timeout: float = 2.0) -> None:
        """Ask the engine for a sign of life; raises ServiceError, or one of its kinds, without one."""
        call = self._infer(iter((build_probe(uuid.uuid4().hex),)), timeout=timeout)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                # TensorRT-LLM's own backend may call a stop of nothing an error, and so shows that it lives.
                if self._backend is None or means_dead(message.error_message):
                    check(message)
        except grpc.RpcError as error:
            raise from_rpc(error, self.url) from None

    async def adapters(
        self, command: str = "list", lora_task_id: int = 0, *, timeout: float = 120.0
    ) -> list[dict[str, Any]]:
        """Every LoRA adapter (`name`, `id`, `state`, `running`, `waiting`), after the command was carried out.

        Raises RequestError or NotFoundError when that cannot be done.
        """
        request = build_adapter_command(command, lora_task_id, uuid.uuid4().hex)
        call = self._infer(iter((request,)), timeout=timeout)
        adapters: list[dict[str, Any]] = []
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                adapters = read_adapters(message)
        except grpc.RpcError as error:
            raise from_rpc(error, self.url) from None
        return adapters

    async def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
