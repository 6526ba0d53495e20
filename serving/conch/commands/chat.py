"""`conch chat`: talk to a model, once or in a conversation: through the gateway, or in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from conch.remote import gateway_url, refusal
from conch_build.console import Console, with_console
from conch_build.errors import ConchError, InputError, ServiceError, UnavailableError
from conch_build.extras import require

if TYPE_CHECKING:
    from conch.local import LocalAnswer, LocalEngine


@click.command()
@click.option("-m", "--message", help="Ask this once, print the answer and leave.")
@click.option("--system", help="Instructions that come before the conversation.")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
@click.option(
    "--local", type=click.Path(path_type=Path), metavar="PLAN", help="No server: PLAN's engine, in this process."
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Default: what fits into the context.")
@click.option("--temperature", type=float)
@click.option("--api-key", envvar="CONCH_API_KEY", help="Default: $CONCH_API_KEY.")
@with_console
def chat(
    console: Console,
    message: str | None,
    system: str | None,
    url: str,
    local: Path | None,
    max_tokens: int | None,
    temperature: float | None,
    api_key: str | None,
) -> None:
    """Talk to the model behind the gateway, or to a plan's own engine. Ctrl-C stops an answer, Ctrl-D leaves."""
    if console.as_json and message is None:
        raise InputError("--json needs a message", fix="Give it with -m.")
    if local is None:
        return _talk(console, partial(_Answer, gateway_url(url), api_key), message, system, max_tokens, temperature)
    with contextlib.closing(_built(console, local)) as engine:
        _talk(console, engine.ask, message, system, max_tokens, temperature)


def _built(console: Console, path: Path) -> LocalEngine:
    """The engine of a plan for the CPU, built if need be. Raises PlanError and what a build raises."""
    from conch.evaluation import EngineEvaluator
    from conch.local import LocalEngine
    from conch_build.errors import PlanError
    from conch_build.pipeline import build
    from conch_build.plan import load_plan

    plan = load_plan(path)
    if plan.engine.backend != "openvino":
        fix = "`conch serve` starts it, and `conch chat` talks to it."
        raise PlanError("only engines for the CPU run in this process", where="engine.backend", fix=fix)
    return LocalEngine(build(plan, evaluator=EngineEvaluator(), say=console.note).engine.path)


def _talk(
    console: Console,
    ask: _Ask,
    message: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    options = {"max_tokens": max_tokens, "temperature": temperature}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    if message is not None:
        messages.append({"role": "user", "content": message})
        answer = ask(messages, options)
        text = _collected(answer, show=not console.as_json)
        if console.as_json:
            console.result({"text": text, "finish_reason": answer.finish_reason, "usage": answer.usage})
        return
    _converse(console, ask, messages, options)


def _converse(console: Console, ask: _Ask, messages: list[dict[str, str]], options: dict[str, Any]) -> None:
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            click.echo()
            return
        if not line:
            continue
        turns = [*messages, {"role": "user", "content": line}]
        try:
            text = _collected(ask(turns, options), show=True)
        except KeyboardInterrupt:
            click.echo()
            continue
        except ConchError as error:
            # The conversation so far is worth keeping: only this turn is lost.
            console.failure(error)
            continue
        messages[:] = [*turns, {"role": "assistant", "content": text}]


def _collected(answer: _Answer | LocalAnswer, *, show: bool) -> str:
    parts = []
    for part in answer:
        parts.append(part)
        if show:
            click.echo(part, nl=False)
    if show:
        click.echo()
    return "".join(parts)


class _Answer:
    """One streamed answer: iterate over its text; afterwards its finish reason and usage are known."""

    def __init__(self, url: str, api_key: str | None, messages: list[dict[str, str]], options: dict[str, Any]) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self._url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._body = {
            **options,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def __iter__(self) -> Iterator[str]:
        require("chat", "gateway", "httpx")
        import httpx

        timeout = httpx.Timeout(None, connect=5)
        try:
            with httpx.stream(
                "POST",
                f"{self._url}/v1/chat/completions",
                json=self._body,
                headers=self._headers,
                timeout=timeout,
                trust_env=False,
            ) as response:
                if response.status_code != 200:
                    raise refusal(response.status_code, response.read(), self._url)
                yield from self._texts(response.iter_lines())
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InputError(f"is not an address: {error}", where=self._url) from None
        except httpx.ConnectError:
            fix = "Is the gateway running? `conch serve` starts it."
            raise UnavailableError("no connection", where=self._url, fix=fix) from None
        except httpx.HTTPError as error:
            raise ServiceError(f"the connection broke: {error}", where=self._url) from None

    def _texts(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            data = line.removeprefix("data: ")
            if data == line:
                continue
            if data == "[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise ServiceError(event["error"]["message"], where=self._url)
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                if text := choice["delta"].get("content"):
                    yield text
        raise ServiceError("the stream ended before its end", where=self._url)


_Ask: TypeAlias = "Callable[[list[dict[str, str]], dict[str, Any]], _Answer | LocalAnswer]"
