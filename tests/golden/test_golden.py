"""Dry runs and manifests stay as they were reviewed; `python -m tests.golden` writes them anew."""

from __future__ import annotations

import pytest

from tests.golden.cases import EXPECTED, file_of, names, rendered
from tests.golden.deployed import PLANS, manifests, manifests_file


@pytest.mark.parametrize(("model", "backend", "form"), list(names()), ids=["-".join(name) for name in names()])
def test_a_dry_run_is_as_it_was_reviewed(model: str, backend: str, form: str) -> None:
    path = file_of(model, backend, form)
    expected = path.read_text(encoding="utf-8")
    assert rendered(model, backend, form) == expected, f"{path} differs: see `python -m tests.golden`"


@pytest.mark.parametrize("name", PLANS)
def test_the_manifests_of_a_plan_are_as_they_were_reviewed(name: str) -> None:
    path = manifests_file(name)
    assert manifests(name) == path.read_text(encoding="utf-8"), f"{path} differs: see `python -m tests.golden`"


def test_no_file_is_left_of_a_case_that_is_gone() -> None:
    kept = {*(file_of(*name) for name in names()), *map(manifests_file, PLANS)}
    assert {path for path in EXPECTED.rglob("*") if path.is_file()} == kept
