"""The gateway, asked over HTTP: what it serves, how long a prompt is, and answers. Knows nothing of rows.

What is busy or away is asked again, as long as there is patience. What no time mends is an error of the request
(RequestError: this one is wrong) or of the job (every other ConchError: no other one would fare better).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conch.batch.throttle import Throttle
from conch.remote import refusal
from conch_build.errors import ConchError, InputError, RequestError, ServiceError, UnavailableError

if TYPE_CHECKING:
    import httpx

Message = dict[str, str]

_ANSWER_SECONDS = 660.0
"""Above what a gateway gives to a request."""
_JOB_ENDS = (401, 403, 404)
"""No key, no permission, no model: so it would be for every row."""
_TRIES = 3
"""Of a request that breaks something, while the engine does well otherwise."""
_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class Reply:
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Gateway:
    def __init__(self, http: httpx.AsyncClient, throttle: Throttle, model: str, patience_seconds: float) -> None:
        self.model = model
        self._http = http
        self._throttle = throttle
        self._patience = patience_seconds
        self._went_well_at = time.monotonic()

    async def chat(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Reply:
        """Raises RequestError for this request, other ConchErrors for all of them."""
        body = {"model": self.model, "messages": list(messages), "service_tier": "flex", **options}
        answer = await self._post("/v1/chat/completions", body)
        choice, usage = answer["choices"][0], answer["usage"]
        text = choice["message"]["content"] or ""
        return Reply(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])

    async def tokens_of(self, messages: Sequence[Message]) -> int:
        """How long a prompt is. Raises as `chat`."""
        body = {"model": self.model, "messages": list(messages)}
        return int((await self._post("/tokenize", body))["count"])

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        broken = 0
        wait = 0.5
        while True:
            async with self._throttle.place():
                response = await self._once(path, body)
                if response is not None and response.status_code == 200:
                    self._throttle.went_well()
                    self._went_well_at = time.monotonic()
                    return response.json()
                if response is not None and response.status_code < 500 and response.status_code != 429:
                    raise _refused(response)
                if response is not None and response.headers.get("x-should-retry") == "false":
                    raise RequestError(refusal(response.status_code, response.content, "").what)
                if response is not None and response.status_code in (429, 503):
                    wait = float(response.headers.get("retry-after-ms", 0)) / 1000 or wait
                    self._throttle.refused(wait)
                else:
                    broken += 1
            if broken >= _TRIES and await self._is_ready():
                raise RequestError(f"the engine failed {broken} times on it")
            if (response is None or response.status_code != 429) and self._patience_is_over():
                fix = "Nothing is lost: run the same command again once it is back."
                where = str(self._http.base_url)
                raise UnavailableError(f"no answer for {self._patience:g} s", where=where, fix=fix)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    async def _once(self, path: str, body: Mapping[str, Any]) -> httpx.Response | None:
        """None: no answer at all."""
        import httpx

        try:
            return await self._http.post(path, json=body)
        except httpx.TransportError:
            return None

    async def _is_ready(self) -> bool:
        import httpx

        try:
            return bool((await self._http.get("/health/ready")).status_code == 200)
        except httpx.TransportError:
            return False

    def _patience_is_over(self) -> bool:
        return time.monotonic() - self._went_well_at > self._patience


def client(url: str, api_key: str | None, most: int) -> httpx.AsyncClient:
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=most + 1, max_keepalive_connections=most + 1)
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_ANSWER_SECONDS, limits=limits, trust_env=False)


async def served_model(http: httpx.AsyncClient, name: str | None) -> tuple[str, int]:
    """The model of that name, or the first one, and its context. Raises UnavailableError, InputError, ServiceError."""
    import httpx

    url = str(http.base_url)
    try:
        response = await http.get("/v1/models", timeout=10)
    except httpx.TransportError:
        fix = "`conch serve` starts a gateway; --url names another, --plan starts one for this batch."
        raise UnavailableError("no gateway answers there", where=url, fix=fix) from None
    if response.status_code != 200:
        raise _refused(response)
    cards = {card["id"]: card for card in response.json()["data"]}
    name = name if name is not None else next(iter(cards), "")
    if name not in cards:
        raise InputError(f"serves no model {name!r}", where=url, fix=f"It serves: {', '.join(cards)}.")
    context = cards[name].get("max_model_len")
    if context is None:
        raise ServiceError("does not say how long its context is: no gateway of Conch", where=url)
    return name, int(context)


def _refused(response: httpx.Response) -> ConchError:
    error = refusal(response.status_code, response.content, str(response.url))
    if response.status_code in _JOB_ENDS:
        return InputError(error.what, where=str(response.url.copy_with(path="/")))
    return error if isinstance(error, RequestError) else RequestError(error.what)
