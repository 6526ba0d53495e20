"""Every promised behaviour has a test, and every cited one is promised."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

PROMISED = re.compile(r"^\| ([A-Z]+-\d+) \|", re.M)
CITED = re.compile(r"conforms\(([^)]*)\)")


def test_each_line_is_held_by_a_test() -> None:
    promised = PROMISED.findall((ROOT / "serving" / "conformance.md").read_text(encoding="utf-8"))
    assert len(set(promised)) == len(promised) > 40
    cited: set[str] = set()
    for path in Path(ROOT / "tests").rglob("test_*.py"):
        for names in CITED.findall(path.read_text(encoding="utf-8")):
            cited |= set(re.findall(r"[A-Z]+-\d+", names))
    assert cited == set(promised)
