"""The fields that offer tools to the model: which there are, and whether one has to be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.structured import Calls

MAX_TOOLS = 128  # OpenAI's
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model is shown and may call; none where `tool_choice` is none."""

    tools: tuple[dict[str, Any], ...] = ()
    is_parallel: bool = True  # may call several in one answer
    required: Calls | None = None  # calls that the answer has to be
    is_named: bool = False  # by name: OpenAI then ends with "stop", not "tool_calls"

    @property
    def possible(self) -> Calls | None:
        """Calls that the answer can be."""
        functions = tuple(tool["function"] for tool in self.tools)
        return self.required or (Calls(functions, self.is_parallel) if functions else None)


def parse_tools(fields: Fields) -> ToolUse:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`."""
    given = fields.array("tools") or []
    if len(given) > MAX_TOOLS:
        raise fields.error("tools", f"may have at most {MAX_TOOLS} tools, not {len(given)}")
    tools = tuple(_parse_tool(Fields(tool, f"tools[{n}]")) for n, tool in enumerate(given))
    is_parallel = fields.boolean("parallel_tool_calls", default=True)
    choice = fields.value("tool_choice")
    if choice == "none":
        # Tools that may not be called are not shown: what it does not know, it cannot call.
        return ToolUse()
    if choice in (None, "auto"):
        return ToolUse(tools, is_parallel)
    if not tools:
        raise fields.error("tool_choice", "may only be given together with tools")
    functions = tuple(tool["function"] for tool in tools)
    if choice == "required":
        return ToolUse(tools, is_parallel, Calls(functions, is_parallel))
    function = _named(fields, functions)
    return ToolUse(tools, False, Calls((function,), False), is_named=True)


def _named(fields: Fields, functions: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the one function that tool_choice names."""
    choice = fields.value("tool_choice")
    if not isinstance(choice, dict):
        why = f'must be "none", "auto", "required" or a function, not {describe(choice)}'
        raise fields.error("tool_choice", why)
    outer = Fields(choice, "tool_choice")
    if (kind := outer.string("type")) != "function":
        raise outer.error("type", f"must be 'function', not {describe(kind)}")
    name = Fields(outer.value("function"), outer.param("function")).string("name")
    for function in functions:
        if function["name"] == name:
            return function
    raise fields.error("tool_choice", f"names a function that is not among tools: {describe(name)}")


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
