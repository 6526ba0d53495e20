"""Dry runs stay as they were reviewed; `python -m tests.golden` writes them anew."""

from __future__ import annotations

import pytest

from tests.golden.cases import EXPECTED, file_of, names, rendered


@pytest.mark.parametrize(("model", "backend", "form"), list(names()), ids=["-".join(name) for name in names()])
def test_a_dry_run_is_as_it_was_reviewed(model: str, backend: str, form: str) -> None:
    path = file_of(model, backend, form)
    expected = path.read_text(encoding="utf-8")
    assert rendered(model, backend, form) == expected, f"{path} differs: see `python -m tests.golden`"


def test_no_file_is_left_of_a_case_that_is_gone() -> None:
    assert set(EXPECTED.rglob("*.txt")) == {file_of(*name) for name in names()}
