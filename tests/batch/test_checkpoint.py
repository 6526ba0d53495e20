"""An answer that was kept is never asked for again, whatever ended the batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conch.batch.answers import Result
from conch.batch.checkpoint import Checkpoint
from conch_build.errors import InputError

BATCH = {"prompt": "{text}", "input": "abc"}
OK, FAILED = Result("yes", None, 3, 2), Result(error="it is empty")


def test_rows_are_kept_and_counted_across_runs(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Checkpoint(output, BATCH) as checkpoint:
        checkpoint.add(4, OK)
        checkpoint.add(1, FAILED)
    with Checkpoint(output, BATCH) as checkpoint:
        assert [checkpoint.lacks(row) for row in range(5)] == [True, False, True, True, False]
        assert (checkpoint.result(4), checkpoint.result(1)) == (OK, FAILED)
        checkpoint.add(0, OK)
        totals = checkpoint.totals
        assert (totals.rows, totals.answered, totals.failed, totals.completion_tokens) == (3, 2, 1, 4)


def test_a_row_that_has_failed_can_be_asked_again_and_counts_once(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Checkpoint(output, BATCH) as checkpoint:
        checkpoint.add(0, FAILED)
        checkpoint.add(1, OK)
    for _ in range(2):
        with Checkpoint(output, BATCH, retry_failed=True) as checkpoint:
            if checkpoint.lacks(0):
                checkpoint.add(0, OK)
            assert not checkpoint.lacks(0) and not checkpoint.lacks(1)
            assert (checkpoint.totals.answered, checkpoint.totals.failed) == (2, 0)
            assert checkpoint.result(0) == OK


def test_another_batch_does_not_go_on_from_it(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Checkpoint(output, BATCH):
        pass
    with (
        pytest.raises(InputError, match="another input, prompt"),
        Checkpoint(output, {"prompt": "{title}", "input": "def"}),
    ):
        pass


def test_two_batches_do_not_write_the_same_output(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with (
        Checkpoint(output, BATCH) as first,
        pytest.raises(InputError, match=r"another `conch batch` writes this output"),
        Checkpoint(output, BATCH),
    ):
        pass
    with Checkpoint(output, BATCH) as second:
        assert second.path == first.path


@pytest.mark.parametrize("content", ["my notes\n", '{"row": 1}\n', "\n"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, content: str) -> None:
    theirs = tmp_path / "out.jsonl.progress"
    theirs.write_text(content)
    with pytest.raises(InputError, match="is not of `conch batch`"), Checkpoint(tmp_path / "out.jsonl", BATCH):
        pass
    assert theirs.read_text() == content


@pytest.mark.parametrize("left", [0, 3, 12])
def test_a_kill_at_the_very_start_leaves_nothing_to_stumble_over(tmp_path: Path, left: int) -> None:
    (tmp_path / "out.jsonl.progress").write_text('{"batch": {"prompt": "{te'[:left])
    for _ in range(2):
        with Checkpoint(tmp_path / "out.jsonl", BATCH) as checkpoint:
            assert checkpoint.totals.rows == 0


def test_a_full_disk_is_said_and_what_was_kept_before_is_whole(tmp_path: Path) -> None:
    """The system refuses to let the file grow over 4 KiB, as it would on a full disk."""
    code = f"""
import resource, signal
from pathlib import Path
from conch.batch.answers import Result
from conch.batch.checkpoint import Checkpoint
from conch_build.errors import SetupError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with Checkpoint(Path({str(tmp_path / "out.jsonl")!r}), {BATCH!r}) as checkpoint:
    row = 0
    try:
        while True:
            checkpoint.add(row, Result("x" * 300))
            row += 1
    except SetupError as error:
        assert "the disk is full" in error.message and "run the same command again" in error.message
    print(row)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = int(done.stdout)
    assert rows > 5
    with Checkpoint(tmp_path / "out.jsonl", BATCH) as checkpoint:
        assert [checkpoint.lacks(row) for row in range(rows + 1)] == [False] * rows + [True]
        checkpoint.add(rows, OK)
