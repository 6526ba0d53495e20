"""`conch explain`, and that every rule can be explained, was seen broken, and is listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conch_build.cli import build_commands
from conch_build.preflight import RULES

_CODE = Path(__file__).parents[2] / "build" / "conch_build"
_TESTS = Path(__file__).parents[1]
_REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w.-]+/[\w./-]+( [\w./-]+)*")


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(build_commands, ["explain", *arguments])


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_has_an_explanation_for_a_person_in_a_hurry(name: str) -> None:
    rule = RULES[name]
    assert re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", name)
    assert 40 <= len(rule.explanation) <= 500, rule.explanation
    assert rule.explanation[-1] == "." and rule.backends
    assert all(_REFERENCE.fullmatch(reference) for reference in rule.references)


ON_A_HOST = {
    "host.import": "test_a_folder_that_would_hide_the_package_is_found",
    "host.shared-memory": "test_the_shared_memory_of_a_plain_container_is_too_small",
    "host.gpu": "test_a_gpu_of_another_kind_than_the_plans_is_named",
}
"""Rule that the start of a server decides -> its test."""


def test_every_rule_has_been_broken_in_a_test() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in _TESTS.glob("build/test_*.py"))
    decided_here = [name for name, rule in RULES.items() if rule.decided != "host"]
    assert [name for name in decided_here if f'"{name}"' not in tests] == []
    of_servers = "\n".join(path.read_text(encoding="utf-8") for path in _TESTS.glob("serving/test_gpu_*.py"))
    assert RULES.keys() - set(decided_here) == ON_A_HOST.keys()
    assert all(f"def {test}(" in of_servers for test in ON_A_HOST.values())


def test_every_name_that_the_code_gives_a_problem_is_a_rule() -> None:
    given = {
        name
        for path in _CODE.rglob("*.py")
        for name in re.findall(r'"((?:checkpoint|lora)\.[a-z-]+)"', path.read_text(encoding="utf-8"))
    }
    assert given <= RULES.keys()


def test_a_rule_is_explained_by_its_name_with_where_it_was_seen() -> None:
    done = explain("precision.fp8-uncalibrated")
    assert done.exit_code == 0
    assert "calibration" in done.stdout and "NVIDIA/TensorRT-LLM#2602" in done.stdout
    assert json.loads(explain("precision.fp8-uncalibrated", "--json").stdout)["severity"] == "error"


def test_without_a_rule_all_are_listed() -> None:
    lines = explain().stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == sorted(RULES)
    listed = json.loads(explain("--json").stdout)
    assert [rule["rule"] for rule in listed] == sorted(RULES)
    assert all(rule.keys() >= {"explanation", "severity", "references"} for rule in listed)


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    done = explain("memory.weight")
    assert done.exit_code == 2
    assert "Did you mean `memory.weights`?" in done.stderr
