"""What goes in as a table comes out as the same table with answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.batch.answers import Result
from conch.batch.output import ADDED, check_output, write_output
from conch.batch.rows import Input, Row, open_input
from conch_build.errors import InputError


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def answered(source: Input) -> Iterator[tuple[Row, Result]]:
    for row in source.rows():
        yield row, Result(f"answer {row.number}", None, 5, 2) if row.number != 1 else Result(error="it is empty")


def test_json_lines_are_rows_and_those_that_are_none_are_rows_with_a_problem(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"text": "a"}\r\n\n{"text": \n[1]\n\xff\n{"text": "b"}'
    source = open_input(written(tmp_path / "in.jsonl", content))
    rows = list(source.rows())
    assert [row.number for row in rows] == [0, 1, 2, 3, 4]
    assert (rows[0].columns, rows[4].columns) == ({"text": "a"}, {"text": "b"})
    assert [row.problem for row in rows[1:4]] == [
        "line 3 is not JSON",
        "line 4 is not a JSON object",
        "line 5 is not JSON",
    ]
    assert (source.count(), source.columns()) == (5, ["text"])


def test_csv_has_its_columns_from_its_first_line(tmp_path: Path) -> None:
    source = open_input(written(tmp_path / "in.csv", '\ufeffid,text\r\n1,"two\nlines, ""quoted"""\r\n2\r\n3,c\r\n'))
    rows = list(source.rows())
    assert rows[0].columns == {"id": "1", "text": 'two\nlines, "quoted"'}
    assert rows[1].problem == "it has 1 values and not 2"
    assert (source.count(), source.columns()) == (3, ["id", "text"])


@pytest.mark.parametrize("content", ["a,a\n1,2\n", 'a,b\n"x', "a\n\xff\n".encode("latin-1"), "a\n\n\0\n"])
def test_what_is_no_csv_is_said_so(tmp_path: Path, content: str | bytes) -> None:
    source = open_input(written(tmp_path / "in.csv", content))
    try:
        rows = list(source.rows())
    except InputError as error:
        assert "in.csv" in error.message
    else:
        assert content == "a\n\n\0\n" and rows == [Row(0, {"a": "\0"})]  # Python 3.11 reads that


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_output_has_every_row_once_and_in_order(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"id": [1, 2, 3], "text": ["a", "", "c"], "tags": [["x"], [], None]})
    parquet.write_table(table, tmp_path / "in.parquet")
    source = open_input(tmp_path / "in.parquet")
    output = tmp_path / f"out.{kind}"
    check_output(output, source, source.columns(), again=False)
    write_output(output, source, answered(source))
    if kind == "jsonl":
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert rows[0] == {"id": 1, "text": "a", "tags": ["x"]} | dict(
            zip(ADDED, ("answer 0", None, 5, 2, 1), strict=True)
        )
    elif kind == "csv":
        rows = list(csv.DictReader(output.read_text().splitlines()))
        assert rows[0]["tags"] == '["x"]'
    else:
        found = parquet.read_table(output)
        assert found.select(table.column_names).equals(table)
        rows = found.to_pylist()
    assert [str(row["id"]) for row in rows] == ["1", "2", "3"]
    assert [row["answer_error"] or None for row in rows] == [None, "it is empty", None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", output.name]


def test_an_output_that_fails_halfway_is_not_there(tmp_path: Path) -> None:
    source = open_input(written(tmp_path / "in.jsonl", '{"text": "a"}\n{"text": "b"}\n'))

    def broken() -> Iterator[tuple[Row, Result]]:
        yield next(source.rows()), Result("x")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_output(tmp_path / "out.jsonl", source, broken())
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_output_that_cannot_be_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    source = open_input(written(tmp_path / "in.jsonl", '{"text": "a"}\n'))
    taken = written(tmp_path / "taken.jsonl", "x")
    for name, words in (
        ("out.txt", "of no kind"),
        ("in.jsonl", "the input itself"),
        ("no/out.jsonl", "folder"),
        ("out.parquet", "no types"),
        (taken.name, "there already"),
    ):
        with pytest.raises(InputError, match=words):
            check_output(tmp_path / name, source, ["text"], again=False)
    with pytest.raises(InputError, match="column 'answer'"):
        check_output(tmp_path / "out.jsonl", source, ["text", "answer"], again=False)
    with pytest.raises(InputError, match="no earlier run"):
        check_output(taken, source, ["text"], again=True)


@pytest.mark.parametrize("name", ["in.txt", "missing.jsonl", "in.parquet"])
def test_an_input_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    if name != "missing.jsonl":
        written(tmp_path / name, "no table")
    with pytest.raises(InputError, match=name):
        list(open_input(tmp_path / name).rows())
