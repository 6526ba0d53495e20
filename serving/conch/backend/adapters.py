"""Orders about LoRA adapters, given through `conch_adapter_command`: decoded, carried out, answered.

    list     what has become of each adapter
    load     read the weights of `lora_task_id` again and use them from now on
    unload   refuse new requests for `lora_task_id` and free its slot

Each answers with the list as it is afterwards, `conch_adapters`: one JSON object for each adapter. Where weights lie
is in the repository's registry; no order can name a place.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from conch.backend.arrays import Arrays, strings
from conch.backend.responses import Response
from conch.backend.tensors import AdapterNames, adapter_name
from conch_build.errors import RequestError

if TYPE_CHECKING:
    from conch.engine import Engine

Action = Literal["list", "load", "unload"]
_COMMAND = "conch_adapter_command"


@dataclass(frozen=True)
class Command:
    action: Action
    adapter: str | None
    """None: of all."""


def decode_command(inputs: Arrays, adapters: AdapterNames) -> Command | None:
    """The order in a request; None if it has none. Raises RequestError, NotFoundError."""
    given = "".join(strings(inputs, _COMMAND))
    if not given:
        return None
    action = next((known for known in get_args(Action) if known == given), None)
    if action is None:
        raise RequestError(f"`{_COMMAND}` is {given!r}; there are {', '.join(get_args(Action))}", param=_COMMAND)
    if action == "list":
        return Command(action, None)
    number = int(inputs["lora_task_id"].ravel()[0]) if "lora_task_id" in inputs else 0
    return Command(action, adapter_name(number, adapters))


def carry_out(command: Command, engine: Engine) -> Response:
    """Blocks until it is done. Raises what the engine raises."""
    if command.adapter is not None:
        (engine.load_adapter if command.action == "load" else engine.unload_adapter)(command.adapter)
    states = [json.dumps(asdict(state)) for state in engine.adapters()]
    return Response({"conch_adapters": np.array([states], np.object_)}, final=True)
