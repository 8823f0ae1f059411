"""Tools that a model may call, as chat templates take them: JSON schemas of functions, each with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name": ..., "parameters": ...}}, or what stands in ``function`` alone."""


def checked_tools(tools: Sequence[Tool] | None) -> Sequence[Tool]:
    """Raises: UsageError where they are no list of schemas with names."""
    if not isinstance(tools, list | tuple | None):
        raise UsageError(f"`tools` is {type(tools).__name__}, where a list of JSON schemas was expected.", "tools")
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UsageError(
                '`tools`: a tool is a JSON schema with a name: {"type": "function", "function": {"name": ..., ...}}.',
                "tools",
            )
    return tools or ()


def tool_name(tool: Tool) -> str:
    """Of a tool that was checked."""
    return str(tool.get("function", tool)["name"])


def renamed(tool: Tool, name: str) -> Tool:
    """The same with another name."""
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "name": name}}
    return {**tool, "name": name}
