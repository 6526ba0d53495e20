"""A line of a batch is asked until it has an answer that time will not mend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from conch.gateway.batches.asking import Answered, Asker
from conch.gateway.errors import KeyRefused, QueueFull, RateLimited
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.errors import DeadlineError, RequestError, ServiceError


class Endpoint:
    """Answers as it is told, one after the other; the last one for ever."""

    def __init__(self, *answers: Exception | dict[str, Any]) -> None:
        self.answers = answers
        self.bodies: list[Any] = []

    async def __call__(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return JSONResponse(answer)


async def no_keys(owner: str) -> None:
    return None


async def asked(endpoint: Endpoint, wanted: Iterator[bool] | None = None, key_of: Any = no_keys) -> Answered | None:
    asker = Asker({"/v1/completions": endpoint}, Lifecycle(), key_of)
    return await asker.ask("/v1/completions", {"prompt": "x"}, "ada", lambda: next(wanted) if wanted else True)


async def test_a_line_is_served_in_the_flex_tier() -> None:
    endpoint = Endpoint({"ok": True})
    answered = await asked(endpoint)
    assert answered is not None and (answered.status, answered.body) == (200, {"ok": True})
    assert endpoint.bodies == [{"prompt": "x", "service_tier": "flex"}]


@pytest.mark.conforms("BATCH-3")
async def test_what_is_only_busy_is_asked_again() -> None:
    endpoint = Endpoint(QueueFull(0.1), RateLimited("too many", 0.1), QueueFull(0.1), QueueFull(0.1), {"ok": True})
    answered = await asked(endpoint)
    assert answered is not None and answered.status == 200 and len(endpoint.bodies) == 5


@pytest.mark.conforms("BATCH-3")
@pytest.mark.parametrize(
    ("error", "status", "tries"),
    [
        (RequestError("wrong", param="prompt"), 400, 1),
        (RateLimited("more than the key may ever have", None), 429, 1),
        (ServiceError("the engine broke"), 502, 3),
        (DeadlineError("too slow"), 504, 3),
        (ZeroDivisionError(), 500, 3),
    ],
)
async def test_what_no_time_mends_is_the_lines_answer(error: Exception, status: int, tries: int) -> None:
    endpoint = Endpoint(error)
    answered = await asked(endpoint)
    assert answered is not None and answered.status == status
    assert answered.body["error"].keys() == {"message", "type", "param", "code"}
    assert len(endpoint.bodies) == tries


async def test_a_line_that_is_wanted_no_more_has_no_answer() -> None:
    assert await asked(Endpoint(QueueFull(0.01)), iter([True, True, False, False, False])) is None


@pytest.mark.conforms("BATCH-7")
async def test_a_key_that_is_no_longer_good_answers_no_line() -> None:
    async def refused(owner: str) -> None:
        assert owner == "ada"
        raise KeyRefused("The API key that asked for this may not be used any more.")

    endpoint = Endpoint({"ok": True})
    answered = await asked(endpoint, key_of=refused)
    assert answered is not None and answered.status == 401 and endpoint.bodies == []
