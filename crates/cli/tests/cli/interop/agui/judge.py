"""Reads AG-UI events, one JSON object per line, and holds each against the official models. Unknown fields are faults too."""

import json
import sys

from ag_ui.core import Event
from pydantic import BaseModel, TypeAdapter

events = TypeAdapter(Event)


def unknown(model: BaseModel, at: str = "") -> list[str]:
    found = [f"{at}.{name}" for name in model.model_extra or {}]
    for name in type(model).model_fields:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                found += unknown(item, f"{at}.{name}")
    return found


def nulls(value: dict) -> list[str]:
    # `value` of a CUSTOM event and `snapshot` are the agent's own and may hold anything.
    return [name for name, field in value.items() if field is None and name not in ("value", "snapshot")]


count = 0
for line in sys.stdin:
    raw = json.loads(line)
    model = events.validate_python(raw, strict=False)
    faults = unknown(model) + nulls(raw)
    # What the model understood is what was sent, field by field.
    if json.loads(model.model_dump_json(by_alias=True)) != raw:
        faults.append("it reads differently")
    if faults:
        sys.exit(f"{line}\n{faults}")
    count += 1
print(count)
