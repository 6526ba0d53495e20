"""A run as a file: JSON with every request, CSV with a row a load; and read again for a comparison."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conch.bench.traffic.compare import Rows
from conch_build.errors import InputError

FORMAT = 1
"""Of the JSON; a reader refuses others."""


def run_dict(about: dict[str, Any], rows: Sequence[dict[str, Any]], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`rows`: a load's figures over all rounds; `rounds`: each of them with its figures and requests."""
    return {"conch_bench": FORMAT, **about, "rows": list(rows), "rounds": list(rounds)}


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Errors by kind have a column each; what is not known is left empty."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def read_rounds(path: Path) -> list[Rows]:
    """The rounds of a saved run: load -> figures. Raises InputError for other files."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["conch_bench"] != FORMAT:
            raise InputError(f"is of format {data['conch_bench']}; this Conch reads {FORMAT}", where=str(path))
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        for one in data["rounds"]:
            rounds.setdefault(one["round"], {})[one["figures"]["load"]] = one["figures"]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("is not what `conch bench --save` writes", where=str(path)) from None
    if not rounds:
        raise InputError("holds no rounds", where=str(path))
    return [rounds[number] for number in sorted(rounds)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    errors = {f"errors_{kind}": count for kind, count in row["errors"].items()}
    return {name: value for name, value in row.items() if name != "errors" and value is not None} | errors
