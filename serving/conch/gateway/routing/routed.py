"""A stream of deltas that goes on to another server as long as nothing of the answer has come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic

from conch.client import Delta
from conch.gateway.forks import Stream
from conch.gateway.routing.pool import AnyDoor, Place, Pool
from conch_build.errors import (
    CancelledError,
    ConchError,
    DeadlineError,
    OverloadedError,
    RequestError,
    UnavailableError,
)

RETRIES = 2


class Routed(Generic[AnyDoor]):
    """`begin` opens the stream at a server. What fails later than the first token fails for good."""

    def __init__(
        self,
        pool: Pool[AnyDoor],
        prompt: Sequence[int],
        max_tokens: int,
        salt: Hashable,
        begin: Callable[[AnyDoor], Stream],
    ) -> None:
        self._pool = pool
        self._wanted = prompt, max_tokens, salt
        self._begin = begin
        self._asked: set[int] = set()
        self._begun = False
        self._ask()

    @property
    def server(self) -> str:
        """The one that answers, as far as is known."""
        return self._place.door.name

    async def __anext__(self) -> Delta:
        while True:
            try:
                delta = await self._stream.__anext__()
            except StopAsyncIteration:
                self._place.leave()
                raise
            except ConchError as error:
                self._end(error)
                if self._begun or not _is_worth_another(error) or len(self._asked) > RETRIES:
                    raise
                try:
                    place = self._place
                    self._ask()
                except UnavailableError:
                    raise error from None
                place.standing.retries += 1
                continue
            if delta.tokens and not self._begun:
                self._begun = True
                self._place.served()
            if delta.finish_reason is not None:
                self._place.leave()
            return delta

    def cancel(self) -> None:
        self._stream.cancel()
        self._place.leave()

    def _ask(self) -> None:
        prompt, max_tokens, salt = self._wanted
        self._place: Place[AnyDoor] = self._pool.pick(prompt, max_tokens, salt, but=self._asked)
        self._asked.add(self._place.index)
        self._stream = self._begin(self._place.door)

    def _end(self, error: ConchError) -> None:
        self._stream.cancel()
        self._place.leave()
        if _is_the_servers(error):
            self._place.failed()


def _is_the_servers(error: ConchError) -> bool:
    """An error that speaks of the request, of the caller or of a full queue says nothing against the server."""
    mild = RequestError | CancelledError | DeadlineError | OverloadedError
    return not isinstance(error, mild) or _has_no_model(error)


def _is_worth_another(error: ConchError) -> bool:
    return _is_the_servers(error) or isinstance(error, OverloadedError)


def _has_no_model(error: ConchError) -> bool:
    """Triton's own words; what the engine itself does not find it names with a parameter."""
    return isinstance(error, RequestError) and error.http_status == 404 and error.param is None
