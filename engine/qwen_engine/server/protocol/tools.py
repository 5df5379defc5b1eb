"""The fields that offer tools to the model: which there are, and whether it may call one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qwen_engine.server.protocol.fields import Fields, describe

MAX_TOOLS = 128  # OpenAI's
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model is shown and may call; none where `tool_choice` is none."""

    tools: tuple[dict[str, Any], ...] = ()
    is_parallel: bool = True  # may call several in one answer


def parse_tools(fields: Fields) -> ToolUse:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`."""
    given = fields.array("tools") or []
    if len(given) > MAX_TOOLS:
        raise fields.error("tools", f"may have at most {MAX_TOOLS} tools, not {len(given)}")
    tools = tuple(_parse_tool(Fields(tool, f"tools[{n}]")) for n, tool in enumerate(given))
    choice = fields.value("tool_choice")
    if choice not in (None, "none", "auto"):
        raise fields.error(
            "tool_choice", 'is not supported by this version unless "none" or "auto"'
        )
    is_parallel = fields.boolean("parallel_tool_calls", default=True)
    # Tools that may not be called are not shown: what the model does not know, it cannot call.
    return ToolUse(() if choice == "none" else tools, is_parallel)


def _parse_tool(fields: Fields) -> dict[str, Any]:
    """Check a tool and return it as it came: templates show it to the model word for word."""
    if (kind := fields.string("type")) != "function":
        raise fields.error("type", f"must be 'function', not {describe(kind)}")
    function = Fields(fields.value("function"), fields.param("function"))
    name = function.string("name")
    if name is None:
        raise function.error("name", "is missing")
    if not _NAME.fullmatch(name):
        raise function.error("name", "must have 1 to 128 letters, digits or any of _ - . :")
    parsed: dict[str, Any] = {"name": name}
    if (description := function.string("description")) is not None:
        parsed["description"] = description
    if (parameters := function.object("parameters")) is not None:
        parsed["parameters"] = parameters
    return {"type": "function", "function": parsed}
