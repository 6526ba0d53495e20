"""Version profiles read a second time, from their tables alone: which flags and fields a release has.

Shares no code with `conch_build.profiles`, so that what one of the two misreads, the other finds.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import conch_build
from conch_build.recipe import Command, Recipe, TextFile

_TABLES = Path(conch_build.__file__).parent / "profiles"
FLAGS: dict[str, Any] = json.loads((_TABLES / "commands.json").read_text())
FIELDS: dict[str, dict[str, Any]] = json.loads((_TABLES / "llm_args.json").read_text())
ARGUMENTS = {**FIELDS["BaseLlmArgs"], **FIELDS["TorchLlmArgs"]}

_SYSTEM = {"mkdir", "git", "install", "cp", "ln", "mv", "sh"}
_WITHOUT_TABLE = {"generate_xgrammar_tokenizer_info.py": ("--model_dir", "--output_dir")}
"""Script -> all its flags."""
_KINDS = {
    "AB": {"DraftTarget": "DraftTarget", "NGram": "NGram", "Eagle": "Eagle", "MTP": "MTP"},
    "C": {"Draft_Target": "DraftTarget", "NGram": "NGram", "Eagle3": "Eagle", "MTP": "MTP"},
}
"""Sources of a release -> `decoding_type` -> its object, without `Config`."""
_PROXY = {
    *("hostname", "port", "max_retries", "perf_metrics_max_requests", "context_servers", "generation_servers"),
    *("conditional_disagg_config", "disagg_cluster"),
}


def letters_of(release: str) -> str:
    """The sources that stand for a release."""
    return "AB" if release.startswith("1.2") else "C"


def problems_of(recipe: Recipe, release: str) -> list[str]:
    """Every flag and field of the commands and files that the release does not have."""
    return [problem for step in recipe.steps for problem in _of_step(step, release)]


def _of_step(step: Command | TextFile, release: str) -> Iterator[str]:
    if isinstance(step, Command):
        yield from _of_words(list(step.argv), release)
        return
    name = Path(step.path).name
    if name in ("llm_args.yaml", "context.yaml", "generation.yaml"):
        yield from _of_object(yaml.safe_load(step.text), ARGUMENTS, name, letters_of(release))
    elif name == "proxy.yaml":
        proxy = yaml.safe_load(step.text)
        yield from (f"proxy.yaml: {key}" for key in proxy.keys() - _PROXY)
        for group in ("context_servers", "generation_servers"):
            yield from (f"{group}: {key}" for key in proxy[group].keys() - {"num_instances", "urls", "router"})
    for line in step.text.splitlines():
        if found := re.search(r"(?:^|\s)(trtllm-serve [^#]*)$", line) if name.endswith(".sh") else None:
            yield from _of_words(shlex.split(found[1].replace("$port", "8000")), release)


def _of_words(argv: list[str], release: str) -> Iterator[str]:
    if argv[0] in _SYSTEM:
        return
    if argv[:2] == ["python3", "-m"]:
        if not argv[2].startswith("conch_build.") or find_spec(argv[2]) is None:
            yield f"no module {argv[2]}"
        return
    tool, words = _tool(argv, release)
    if tool in _WITHOUT_TABLE:
        yield from (f"{tool} has no {word}" for word in words[::2] if word not in _WITHOUT_TABLE[tool])
        return
    letters, entry = letters_of(release), FLAGS.get(tool)
    if entry is None or not _has(entry, letters):
        yield f"no program {tool}"
        return
    known: dict[str, Mapping[str, Any]] = {}
    for flag, facts in entry["flags"].items():
        spellings = {flag: "ABC", **facts.get("aliases", {})}
        known |= {name: facts for name, seen in spellings.items() if _has(facts, letters) and set(letters) <= set(seen)}
    for index, word in enumerate(words):
        if not re.match(r"--?[a-zA-Z]", word):
            continue
        flag, _, value = word.partition("=")
        if flag not in known:
            yield f"{tool} has no {flag}"
            continue
        own = {**known[flag], **(known[flag].get("later", {}) if letters == "C" else {})}
        value = value or (words[index + 1] if index + 1 < len(words) else "")
        if own["type"] == "enum" and value not in map(str, own["choices"]):
            yield f"{tool} {flag} is not {value}"
        if own["type"] == "int" and not re.fullmatch(r"-?\d+", value):
            yield f"{tool} {flag} is no number: {value}"
    for flag, facts in entry["flags"].items():
        if facts.get("required") and _has(facts, letters) and not {flag, *facts.get("aliases", ())} & set(words):
            yield f"{tool} needs {flag}"


def _tool(argv: list[str], release: str) -> tuple[str, list[str]]:
    """The program as the table calls it, and the words after it."""
    if argv[0] == "python3":
        script = Path(argv[1])
        if script.name == "convert_checkpoint.py":
            return f"{script.parent.name}/{script.name}", argv[2:]
        if script.name == "hf_ptq.py":
            later = re.fullmatch(r"1\.[4-9].*|1\.3\.\d+(rc(2[4-9]|[3-9]\d))?", release)
            return f"hf_ptq.py {'0.47' if later else '0.37'}", argv[2:]
        return script.name, argv[2:]
    return (" ".join(argv[:2]), argv[2:]) if argv[1:2] == ["disaggregated"] else (argv[0], argv[1:])


def _of_object(given: Mapping[str, Any], fields: Mapping[str, Any], where: str, letters: str) -> Iterator[str]:
    for name, value in given.items():
        facts = fields.get(name)
        if facts is None or not _has(facts, letters):
            yield f"{where} has no {name}"
            continue
        own = {**facts, **(facts.get("later", {}) if letters == "C" else {})}
        kinds = own["type"].split("|")
        if isinstance(value, Mapping) and "Speculative" in kinds:
            kind = _KINDS[letters].get(value.get("decoding_type", ""))
            if kind is None:
                yield f"{where}.{name} has no decoding_type {value.get('decoding_type')}"
                continue
            inner = {**FIELDS["SpeculativeBase"], **FIELDS[f"{kind}Config"], "decoding_type": {"type": "str"}}
            yield from _of_object(value, inner, f"{where}.{name}", letters)
        elif isinstance(value, Mapping) and (part := next((kind for kind in kinds if kind in FIELDS), None)):
            yield from _of_object(value, FIELDS[part], f"{where}.{name}", letters)
        elif not _is_of(value, kinds, own):
            yield f"{where}.{name} is no {own['type']}: {value!r}"


def _is_of(value: Any, kinds: list[str], facts: Mapping[str, Any]) -> bool:
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, int):
        return any(kind.startswith(("int", "float")) for kind in kinds)
    if isinstance(value, float):
        return any(kind.startswith("float") for kind in kinds)
    if isinstance(value, str):
        listed = "enum" in kinds and (value in facts["choices"] or facts.get("any_case"))
        return bool(listed) or bool({"str", "path"} & set(kinds))
    wanted = "list[" if isinstance(value, list) else ("dict[", "mapping")
    return any(kind.startswith(wanted) for kind in kinds)


def _has(facts: Mapping[str, Any], letters: str) -> bool:
    return set(letters) <= set(facts.get("seen", "ABC"))
