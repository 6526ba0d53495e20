"""What a batch has written is read again after a kill: nothing lost, nothing doubled, nothing half."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.gateway.batches.journal import Journal

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}


def row(custom_id: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": {"usage": USAGE, **body}}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


def opened(folder: Path) -> Journal:
    return Journal(folder / "output", folder / "errors")


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_good_and_bad_answers_go_into_their_own_files_and_are_counted(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(3):
        journal.add(row(f"good {number}"))
    journal.add(row("bad", 400))
    journal.add({"id": "batch_req_2", "custom_id": "late", "response": None, "error": {"code": "batch_expired"}})
    assert (journal.counts.completed, journal.counts.failed) == (3, 2)
    assert journal.counts.usage.as_dict()["total_tokens"] == 15
    assert journal.counts.usage.cached_tokens == 3
    assert all(journal.close())
    assert ids(tmp_path / "output") == ["good 0", "good 1", "good 2"]
    assert ids(tmp_path / "errors") == ["bad", "late"]


def test_an_empty_file_does_not_stay(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(row("a"))
    assert journal.close()[1] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(0, 600), garbage=st.binary(max_size=20))
def test_wherever_a_kill_cuts_it_off_what_was_whole_is_kept(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = opened(folder)
    for number in range(3):
        journal.add(row(f"{number}", note="ä\u2028\n"))
    journal.close()
    whole = (folder / "output").read_bytes()
    kept = whole[: min(cut, len(whole))]
    (folder / "output").write_bytes(kept + garbage.replace(b"\n", b""))
    journal = opened(folder)
    assert len(journal.done) == journal.counts.completed == kept.count(b"\n")
    for number in range(3):
        if str(number) not in journal.done:
            journal.add(row(f"{number}"))
    journal.close()
    assert sorted(ids(folder / "output")) == ["0", "1", "2"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    journal.add(row("a"))
    pwrite = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        monkeypatch.setattr(os, "pwrite", nothing_left)
        return pwrite(file, data[:10], offset)

    def nothing_left(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        journal.add(row("b"))
    assert journal.done == {"a"}
    monkeypatch.setattr(os, "pwrite", pwrite)
    journal.add(row("b"))
    journal.close()
    assert ids(tmp_path / "output") == ["a", "b"]
