"""One row to its answer: asked at once, or in parts whose answers are then made one (map-reduce).

Knows nothing of files. A row that cannot be answered is a result that says why; what would fail every row is raised.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from conch.batch.asking import Gateway, Message
from conch.batch.prompt import Prompt, RowError
from conch.batch.rows import Row
from conch.batch.split import split
from conch_build.errors import RequestError

REDUCE = (
    "Each of the following texts answers the same task for one part of a document, in order. "
    "Make them one answer to the task for the whole document.\n\nTask: {task}\n\n{answers}"
)
_ELLIPSIS = "[...]"
_BYTES_BESIDE = 512
"""Of what a chat template may write around a prompt: a prompt is never longer in tokens than in these and its bytes."""
_MARGIN = 0.9


@dataclass(frozen=True)
class Result:
    answer: Any = None
    """A text, or what a schema asks for."""
    error: str | None = None
    """Why there is no answer."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    parts: int = 1
    """That the document was asked about in."""

    def plus(self, other: Result) -> Result:
        """This one, with the tokens of the other as well."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True)
class Task:
    """What is asked about every row."""

    prompt: Prompt
    context: int
    """Tokens of a prompt and its answer."""
    max_tokens: int
    temperature: float = 0.0
    system: str | None = None
    schema: Mapping[str, Any] | None = None
    """JSON Schema of each answer."""
    splits: bool = True
    """Documents that are too long are asked about in parts; else they are not answered."""


class Answerer:
    def __init__(self, gateway: Gateway, task: Task) -> None:
        self._gateway = gateway
        self._task = task
        self._options: dict[str, Any] = {"max_tokens": task.max_tokens, "temperature": task.temperature}
        self._guide: dict[str, Any] = {}
        if task.schema is not None:
            schema = {"name": "answer", "schema": task.schema, "strict": True}
            self._guide = {"response_format": {"type": "json_schema", "json_schema": schema}}

    async def answer(self, row: Row) -> Result:
        if row.problem is not None:
            return Result(error=row.problem)
        try:
            prompt = self._task.prompt.render(row.columns)
            if await self._fits(prompt):
                return await self._ask(prompt)
            if not self._task.splits:
                return Result(error=f"with its answer it is longer than the context of {self._task.context} tokens")
            return await self._in_parts(row)
        except (RequestError, RowError) as error:
            return Result(error=error.what)

    async def _in_parts(self, row: Row) -> Result:
        parts = await self._parts(row)
        asked = await _all(self._ask(self._of_part(row, part), guided=False) for part in parts)
        task = self._of_part(row, _ELLIPSIS)
        result = await self._reduce(task, [str(part.answer) for part in asked])
        for part in asked:
            result = result.plus(part)
        return replace(result, parts=len(parts))

    async def _parts(self, row: Row) -> list[str]:
        """Of the document, each short enough."""
        document = row.columns[self._task.prompt.document]
        beside = await self._tokens(self._of_part(row, _ELLIPSIS))
        room = int((self._task.context - self._task.max_tokens - beside) * _MARGIN)
        if room < 16:
            raise RowError("beside the document the prompt leaves no room in the context")
        whole = await self._gateway.tokens_of([{"role": "user", "content": document}])
        chars = max(1, len(document) * room // whole)
        fitting, waiting = [], split(document, chars)[::-1]
        while waiting:
            part = waiting.pop()
            if await self._fits(self._of_part(row, part)):
                fitting.append(part)
            elif len(part) < 2:
                raise RowError("it cannot be split into parts that fit")
            else:
                waiting += split(part, (len(part) + 1) // 2)[::-1]
        return [part for part in fitting if part.strip()]

    async def _reduce(self, task: str, answers: list[str]) -> Result:
        """Make answers one, as many at a time as fit."""
        spent = Result()
        while len(answers) > 1:
            groups = await self._groups(task, answers)
            if len(groups) == len(answers):
                raise RowError("the answers about two of its parts do not fit into the context together")
            last = len(groups) == 1
            merged = await _all(self._ask(_reduce_prompt(task, group), guided=last) for group in groups)
            if last:
                return merged[0].plus(spent)
            answers = [str(result.answer) for result in merged]
            for result in merged:
                spent = spent.plus(result)
        return (await self._ask(_reduce_prompt(task, answers))).plus(spent)

    async def _groups(self, task: str, answers: list[str]) -> list[list[str]]:
        groups: list[list[str]] = []
        for answer in answers:
            if groups and await self._fits(_reduce_prompt(task, [*groups[-1], answer])):
                groups[-1].append(answer)
            else:
                groups.append([answer])
        return groups

    async def _ask(self, prompt: str, *, guided: bool = True) -> Result:
        options = {**self._options, **(self._guide if guided else {})}
        reply = await self._gateway.chat(self._messages(prompt), options)
        result = Result(reply.text, None, reply.prompt_tokens, reply.completion_tokens)
        if not (guided and self._guide):
            return result
        try:
            return replace(result, answer=json.loads(reply.text))
        except ValueError:
            cut = f"was cut at {self._task.max_tokens} tokens" if reply.finish_reason == "length" else "is no JSON"
            return replace(result, answer=None, error=f"the answer {cut}")

    async def _fits(self, prompt: str) -> bool:
        room = self._task.context - self._task.max_tokens
        system = self._task.system or ""
        if len(prompt.encode()) + len(system.encode()) + _BYTES_BESIDE <= room:
            return True
        return await self._tokens(prompt) <= room

    async def _tokens(self, prompt: str) -> int:
        return await self._gateway.tokens_of(self._messages(prompt))

    def _of_part(self, row: Row, part: str) -> str:
        return self._task.prompt.render({**row.columns, self._task.prompt.document: part})

    def _messages(self, prompt: str) -> list[Message]:
        system = [{"role": "system", "content": self._task.system}] if self._task.system else []
        return [*system, {"role": "user", "content": prompt}]


def _reduce_prompt(task: str, answers: list[str]) -> str:
    numbered = "\n\n".join(f"Part {number}: {answer}" for number, answer in enumerate(answers, 1))
    return REDUCE.format(task=task, answers=numbered)


async def _all(asked: Any) -> list[Result]:
    """All results; when one fails, no other one goes on."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
