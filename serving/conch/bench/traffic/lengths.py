"""How long prompts and answers are: a number, or a distribution with a seed. Pure."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from conch_build.errors import InputError

_FORMS = "128, uniform:64-256, normal:128,32 or lognormal:128,0.5"
_SPEC = re.compile(r"(?:(?P<kind>[a-z]+):)?(?P<first>\d+)(?:[-,](?P<second>\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Lengths:
    """`uniform`: both ends; `normal`: mean and deviation; `lognormal`: median and deviation of the logarithm."""

    kind: str
    first: int
    second: float = 0.0
    least: int = 1

    def draw(self, chance: random.Random) -> int:
        """Never below `least`."""
        if self.kind == "uniform":
            length = chance.randint(self.first, int(self.second))
        elif self.kind == "normal":
            length = round(chance.normalvariate(self.first, self.second))
        elif self.kind == "lognormal":
            length = round(chance.lognormvariate(math.log(self.first), self.second))
        else:
            length = self.first
        return max(length, self.least)


def parse_lengths(text: str, where: str, least: int = 1) -> Lengths:
    """`128`, `uniform:64-256`, `normal:128,32`, `lognormal:128,0.5`. Raises InputError for anything else."""
    match = _SPEC.fullmatch(text.strip())
    kind = (match["kind"] or "fixed") if match else ""
    wanted = {"fixed": None, "uniform": "-", "normal": ",", "lognormal": ","}
    joint = text[match.end("first") : match.start("second")] if match and match["second"] else None
    if match is None or kind not in wanted or joint != wanted[kind]:
        raise InputError(f"{text!r} is not a length", where=where, fix=f"Write it as {_FORMS}.")
    lengths = Lengths(kind, int(match["first"]), float(match["second"] or 0), least)
    if lengths.first < least or (kind == "uniform" and lengths.second < lengths.first):
        raise InputError(f"{text!r} holds lengths below {least} or none at all", where=where, fix=f"As in {_FORMS}.")
    return lengths
