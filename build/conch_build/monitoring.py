"""The alert rules and the dashboard that Conch brings, wherever it is installed."""

from __future__ import annotations

from pathlib import Path

from conch_build.errors import ConchError


def monitoring(name: str) -> str:
    """The text of a file: from `conch_build/_monitoring` in a wheel, `serving/monitoring` in a source tree."""
    here = Path(__file__).parent
    for folder in (here / "_monitoring", here.parents[1] / "serving" / "monitoring"):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise ConchError(f"`{name}` is missing", where=str(here), fix="Reinstall conch.")
