"""What a GPU build consists of, before anything runs: commands and files, in their order.

A recipe can be printed as a shell script (`conch build --dry-run`) or run. Knows nothing of what the commands do.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """One program to run. `title`: what for, in a few words; `image`: the container that has it, None for this host."""

    title: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None

    def script(self) -> str:
        """The command for a shell, an option a line."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        lines: list[list[str]] = [[*words, shlex.quote(self.argv[0])]]
        for word in self.argv[1:]:
            if word.startswith("-"):
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n  ".join(" ".join(line) for line in lines)


@dataclass(frozen=True)
class TextFile:
    """One file to write. `path` as the commands name it."""

    title: str
    path: str
    text: str

    def script(self) -> str:
        """The file as a here-document."""
        end = "EOF"
        while end in self.text.splitlines():
            end += "_"
        text = self.text if self.text.endswith("\n") else self.text + "\n"
        return f"cat > {shlex.quote(self.path)} <<'{end}'\n{text}{end}"


Step = Command | TextFile


@dataclass(frozen=True)
class Recipe:
    steps: tuple[Step, ...]

    def __add__(self, other: Recipe) -> Recipe:
        return Recipe(self.steps + other.steps)

    @property
    def commands(self) -> tuple[Command, ...]:
        return tuple(step for step in self.steps if isinstance(step, Command))

    def script(self) -> str:
        """All of it as a shell script."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        image: str | None = None
        yield "#!/bin/sh"
        yield "set -eu"
        for step in self.steps:
            own = step.image if isinstance(step, Command) else image
            if own != image:
                image = own
                yield f"\n## in {own}" if own else "\n## on this machine"
            yield f"\n# {step.title}"
            yield step.script()
