"""An input file of a batch is checked whole before anything of it runs: every bad line by its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch.gateway.batches.lines import MOST_FINDINGS, Checked, Checker, read
from conch_build.errors import NotFoundError

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "one"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}


def checked(path: Path, content: bytes, *, line_bytes: int = 4096) -> Checked:
    def check_model(name: str | None) -> None:
        if name != "m":
            raise NotFoundError(f"The model '{name}' does not exist", param="model", code="model_not_found")

    path.write_bytes(content)
    checker = Checker(CHAT, line_bytes, check_model, lenient=False)
    for lines in read(path, line_bytes):
        checker.add(lines)
    return checker.checked


def file_of(*lines: Any, end: str = "\n") -> bytes:
    return (end.join(text if isinstance(text, str) else json.dumps(text) for text in lines) + end).encode()


@pytest.mark.conforms("BATCH-2")
def test_every_bad_line_is_told_with_its_number(tmp_path: Path) -> None:
    body = line()["body"]
    content = file_of(
        line("a"),
        line("a"),
        "",
        '{"custom_id": "c", "method": "POST", "url": "/v1/chat/comple',
        "[1, 2]",
        {"custom_id": "d", "url": CHAT, "body": {"model": "m", "messages": []}},
        line("e", url="/v1/embeddings", body={"model": "m", "input": "x"}),
        line("f", body={**body, "model": "nope"}),
        line("g", body={**body, "stream": True}),
        line("h", body="text"),
    ).rstrip(b"\n")
    found = checked(tmp_path / "file", content)
    assert found.total == 9
    assert [(entry["line"], entry["param"], entry["code"]) for entry in found.findings] == [
        (2, "custom_id", "duplicate_custom_id"),
        (4, None, "invalid_json"),
        (5, None, "invalid_json"),
        (6, "method", "missing_required_parameter"),
        (7, "url", "mismatched_endpoint"),
        (8, "body.model", "model_not_found"),
        (9, "body.stream", "invalid_value"),
        (10, "body", "invalid_value"),
    ]
    assert "line 1" in found.findings[0]["message"]


@pytest.mark.conforms("BATCH-2")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(tmp_path: Path, end: str) -> None:
    content = b"\xef\xbb\xbf" + file_of(line("a"), line("b"), end=end)
    found = checked(tmp_path / "file", content)
    assert (found.total, found.findings) == (2, [])


@pytest.mark.conforms("BATCH-2")
@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (line(""), "custom_id"),
        (line("x" * 513), "custom_id"),
        (line(7), "custom_id"),
        (line(method="GET"), "method"),
        (line(colour="red"), "colour"),
        (line(body={**line()["body"], "temperature": 3}), "body.temperature"),
        (line(body={**line()["body"], "colour": "red"}), "body.colour"),
        (line(body={**line()["body"], "service_tier": "priority"}), "body.service_tier"),
        (line(body={**line()["body"], "priority": -5}), "body.priority"),
    ],
)
def test_what_is_wrong_in_a_line_is_named(tmp_path: Path, bad: dict[str, Any], param: str) -> None:
    [finding] = checked(tmp_path / "file", file_of(bad)).findings
    assert (finding["line"], finding["param"]) == (1, param)


@pytest.mark.conforms("BATCH-2")
def test_bytes_that_are_no_text_are_a_finding(tmp_path: Path) -> None:
    [finding] = checked(tmp_path / "file", b'{"custom_id": "\xff"}\n').findings
    assert finding["code"] == "invalid_json" and finding["message"].startswith("The line")


@pytest.mark.conforms("BATCH-2")
def test_a_line_that_is_too_long_is_not_read_whole_and_the_next_one_is_still_found(tmp_path: Path) -> None:
    long = line("a", body={**line()["body"], "user": "x" * 20_000})
    found = checked(tmp_path / "file", file_of(long, line("b"), long))
    assert found.total == 3
    assert [(entry["line"], entry["code"]) for entry in found.findings] == [(1, "line_too_long"), (3, "line_too_long")]


def test_findings_are_bounded(tmp_path: Path) -> None:
    found = checked(tmp_path / "file", file_of(*[str(number) for number in range(MOST_FINDINGS + 9)]))
    assert len(found.findings) == MOST_FINDINGS and found.total == MOST_FINDINGS + 9
