"""A stream of deltas that goes on to another server as long as nothing of the answer has come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic

from conch.client import Delta
from conch.gateway.answers.forks import Stream
from conch.gateway.routing.pool import AnyDoor, Member, Place, Pool
from conch_build.errors import (
    CancelledError,
    ConchError,
    DeadlineError,
    OverloadedError,
    RequestError,
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
        self._asked: set[Member[AnyDoor]] = set()
        self._begun = False
        self._ask()

    @property
    def server(self) -> str:
        """The one that answers, as far as is known."""
        return self._place.door.name

    @property
    def up(self) -> bool:
        """Whether that one gives signs of life, as far as is known."""
        return self._place.standing.up

    async def __anext__(self) -> Delta:
        while True:
            try:
                delta = await self._stream.__anext__()
            except StopAsyncIteration:
                self._place.leave()
                raise
            except ConchError as error:
                self.cancel()
                if not goes_on(error, self._place, self._asked, self._pool, begun=self._begun):
                    raise
                self._ask()
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
        self._asked.add(self._place.member)
        self._stream = self._begin(self._place.door)


def goes_on(
    error: ConchError, place: Place[Any], asked: Collection[Member[Any]], pool: Pool[Any], *, begun: bool
) -> bool:
    """Whether another server may be asked, now that this one has failed; `asked`: those that were.

    Keeps the books of the server. What has `begun` to answer fails for good.
    """
    blamed = _is_the_servers(error)
    if blamed:
        place.failed()
    worth_it = blamed or isinstance(error, OverloadedError)
    again = not begun and worth_it and len(asked) <= RETRIES and bool(pool.left(asked))
    place.standing.retries += again
    return again


def _is_the_servers(error: ConchError) -> bool:
    """An error that speaks of the request, of the caller or of a full queue says nothing against the server."""
    mild = RequestError | CancelledError | DeadlineError | OverloadedError
    return not isinstance(error, mild) or _has_no_model(error)


def _has_no_model(error: ConchError) -> bool:
    """Triton's own words; what the engine itself does not find it names with a parameter."""
    return isinstance(error, RequestError) and error.http_status == 404 and error.param is None
