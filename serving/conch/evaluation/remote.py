"""A model behind a URL: log probabilities by vLLM's `prompt_logprobs` or step by step, answers by OpenAI's API.

The first needs a gateway of ours or vLLM, the last any server with /v1. Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from conch.evaluation import steps
from conch.remote import refusal
from conch_build.errors import DeadlineError, InputError, NotFoundError, RequestError, ServiceError, UnavailableError
from conch_build.quality import CHUNK, TOP, Rows, Task, TopRows

AT_ONCE = 8
"""Requests under way."""
_SECONDS = 600.0


class ServedSubject:
    """`model` behind `url`, a `conch_build.quality.Subject`. None: the only one that is served there."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_SECONDS)
        self.model = model or self._only_model()

    def ids(self, text: str) -> list[int]:
        told = self._post("/tokenize", {"prompt": text})
        return list(told["tokens"])[: told["max_model_len"] - 1]  # one token has to be generated

    def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[Rows]:
        for found in self._each(self._rows, texts):
            yield from found

    def answers(self, tasks: Sequence[Task]) -> list[str]:
        return list(self._each(self._answer, tasks))

    def _each(self, ask: Any, questions: Sequence[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(ask, questions)

    def _rows(self, ids: Sequence[int]) -> list[TopRows]:
        try:
            body = {"prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
            given = self._post("/v1/completions", body)["choices"][0].get("prompt_logprobs")
        except NotFoundError:
            raise
        except RequestError:  # the backend does not tell them
            given = None
        if not given:
            return list(steps.positions(self._post, ids, CHUNK))
        found = [_position(token, entry) for token, entry in zip(ids[1:], given[1:], strict=True)]
        return [_chunk(found[start : start + CHUNK]) for start in range(0, len(found), CHUNK)]

    def _answer(self, task: Task) -> str:
        body: dict[str, Any] = {"max_tokens": task.max_tokens, "temperature": 0}
        if task.schema_ is not None:
            schema = {"name": "answer", "schema": task.schema_, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if task.messages is None:
            return str(self._post("/v1/completions", {**body, "prompt": task.prompt})["choices"][0]["text"])
        messages = [message.model_dump() for message in task.messages]
        answer = self._post("/v1/chat/completions", {**body, "messages": messages})
        return str(answer["choices"][0]["message"]["content"] or "")

    def _only_model(self) -> str:
        names = [str(model["id"]) for model in self._ask("GET", "/v1/models", None)["data"]]
        if len(names) != 1:
            what = f"serves {len(names)} models: {', '.join(names)}"
            raise InputError(what, where=self.url, fix="Choose one with --model or --baseline-model.")
        return names[0]

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("POST", path, {"model": self.model, **body})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx

        try:
            response = self._http.request(method, path, json=body)
        except httpx.TimeoutException:
            raise DeadlineError(f"did not answer within {_SECONDS:g} s", where=self.url) from None
        except httpx.HTTPError:
            fix = "`conch serve` starts a gateway; --url names another server."
            raise UnavailableError("no server answers there", where=self.url, fix=fix) from None
        if response.status_code != 200:
            raise refusal(response.status_code, response.content, self.url)
        try:
            return response.json()
        except ValueError:
            raise ServiceError("its answer is not JSON", where=self.url) from None


def _chunk(positions: Sequence[tuple[int, Mapping[int, float]]]) -> TopRows:
    log_probs = np.array([top[token] for token, top in positions])
    return TopRows(tuple(token for token, _ in positions), log_probs, tuple(top for _, top in positions))


def _position(token: int, entry: Mapping[str, Mapping[str, Any]]) -> tuple[int, Mapping[int, float]]:
    """The token that came and what is known of its position, the likeliest first."""
    known = {int(name): float(found["logprob"]) for name, found in entry.items()}
    return token, {name: known[name] for name in sorted(known, key=lambda name: -known[name])}
