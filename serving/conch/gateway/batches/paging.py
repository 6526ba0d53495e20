"""Lists in OpenAI's shape, page by page. Knows nothing of what they list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Connection, Row, Table, select, tuple_

from conch.gateway.body import validated
from conch_build.errors import RequestError

Query = TypeVar("Query", bound="Page")


class Page(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = None
    """The last id of the page before."""
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    """By when they were made."""


def page_of(request: Request, kind: type[Query]) -> Query:
    """The request's query. Raises RequestError."""
    return validated(dict(request.query_params), kind)


def rows_of(
    connection: Connection, table: Table, page: Page, *conditions: ColumnElement[bool]
) -> tuple[list[Row[Any]], bool]:
    """A page of a table with `id` and `created_at`, and whether there is more. Raises RequestError."""
    order = tuple_(table.c.created_at, table.c.id)
    query = select(table).where(*conditions)
    if page.after is not None:
        mark = connection.execute(select(table).where(table.c.id == page.after, *conditions)).one_or_none()
        if mark is None:
            text = f"Nothing with the id '{page.after[:80]}' is in this list"
            raise RequestError(text, param="after", code="invalid_value")
        place = tuple_(mark.created_at, mark.id)
        query = query.where(order > place if page.order == "asc" else order < place)
    columns = (table.c.created_at, table.c.id)
    query = query.order_by(*(column.asc() if page.order == "asc" else column.desc() for column in columns))
    rows = list(connection.execute(query.limit(page.limit + 1)))
    return rows[: page.limit], len(rows) > page.limit


def listed(rows: Sequence[Row[Any]], more: bool, shown: Callable[[Row[Any]], dict[str, Any]]) -> dict[str, Any]:
    """The page as an answer."""
    return {
        "object": "list",
        "data": [shown(row) for row in rows],
        "first_id": rows[0].id if rows else None,
        "last_id": rows[-1].id if rows else None,
        "has_more": more,
    }


def parameters(kind: type[Page]) -> dict[str, Any]:
    """What OpenAPI says of a list's query."""
    properties = kind.model_json_schema()["properties"]
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()
        ]
    }
