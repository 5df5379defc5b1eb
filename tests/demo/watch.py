"""Follows a QwenDeployment from apply to Available, printing each condition as it turns.

Called by __main__.
"""

import textwrap
import time
from collections.abc import Mapping
from typing import Any

from tests.cluster.client import Cluster
from tests.demo.console import DemoError, paint, print_plan, say
from tests.demo.place import NAMESPACE

_DEADLINE_SECONDS = 600.0
_EVERY_SECONDS = 0.25
_GOOD = {"Planned": "True", "Available": "True", "Progressing": "False", "Degraded": "False"}


def follow(cluster: Cluster, name: str, *, with_plan: bool = True) -> None:
    """Print conditions and plan until the model is served. Raises DemoError if it won't be."""
    start, seen, planned = time.monotonic(), {}, not with_plan
    while time.monotonic() - start < _DEADLINE_SECONDS:
        found = cluster.get("qwen", name, "-n", NAMESPACE)
        status = _current(found)
        for condition in status.get("conditions", []):
            _show(condition, seen, time.monotonic() - start)
        if not planned and "plan" in status:
            planned = True
            say()
            print_plan(status["plan"])
            say()
        _refuse(seen)
        if seen.get("Available", ("",))[0] == "True" and status.get("blocks"):
            return
        time.sleep(_EVERY_SECONDS)
    raise DemoError(f"{name} was not available within {_DEADLINE_SECONDS:.0f} s: see above")


def _current(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status, if it is about the spec as it stands."""
    status: Mapping[str, Any] = found.get("status", {})
    is_current = status.get("observedGeneration") == found["metadata"]["generation"]
    return status if is_current else {}


def _show(condition: Mapping[str, str], seen: dict[str, tuple[str, str]], elapsed: float) -> None:
    kind, told = condition["type"], (condition["status"], condition["message"])
    if seen.get(kind) == told:
        return
    seen[kind] = told
    colour = "green" if _GOOD.get(kind) == told[0] else "bold"
    head = f"{elapsed:5.1f} s  {kind:<11}  {told[0]:<5}  {condition['reason']:<14}  "
    lines = textwrap.wrap(told[1], 96 - len(head) // 2) or [""]
    say(paint(head, colour) + lines[0])
    for line in lines[1:]:
        say(" " * len(head) + line)


def _refuse(seen: Mapping[str, tuple[str, str]]) -> None:
    if seen.get("Planned", ("",))[0] == "False":
        raise DemoError(f"the operator refuses the plan: {seen['Planned'][1]}")
