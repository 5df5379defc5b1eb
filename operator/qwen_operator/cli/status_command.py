"""`kubectl qwen plan` and `kubectl qwen status`: what the operator wrote, for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from qwen_operator import names
from qwen_operator.cli import render
from qwen_operator.cli.advice import advise
from qwen_operator.cli.kubectl import Kubectl, scope

Json = Mapping[str, Any]
RESOURCE = f"{names.PLURAL}.{names.GROUP}"
PLAN_EPILOG = """\
examples:
  kubectl qwen plan chat
  kubectl qwen plan chat -o flags       the engine's flags, ready to paste
  kubectl qwen plan chat -o json

exit codes: 0 a plan is in force; 1 there is none, and the reason says what to change; 2 wrong
usage; 3 the cluster cannot be asked
"""
STATUS_EPILOG = """\
examples:
  kubectl qwen status chat
  kubectl qwen status chat -o json

exit codes: 0 requests are answered and nothing needs a person; 1 otherwise; 2 wrong usage; 3 the
cluster cannot be asked
"""


def run_plan(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    """Show the plan in force; return the exit code."""
    resource = fetch(arguments, kubectl)
    status = resource.get("status") or {}
    plan, refused = status.get("plan"), _condition(status, "Planned")
    if refused.get("status") == "False":
        print(f"{arguments.name}: the spec cannot be planned ({refused['reason']})")
        print("\n".join(render.indent(refused["message"])))
        if plan is not None:
            print("The earlier plan is in force:\n")
    elif plan is None:
        print(f"{arguments.name}: no plan yet; does the operator run?")
    if plan is not None:
        print(_plan_text(plan, arguments.output))
    return 0 if plan is not None and refused.get("status") != "False" else 1


def run_status(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    """Show conditions, blocks, planned beside measured, and advice; return the exit code."""
    resource = fetch(arguments, kubectl)
    status, now = resource.get("status") or {}, datetime.now(UTC)
    found = {
        "name": arguments.name,
        "model": resource["spec"]["model"]["id"],
        **{k: status[k] for k in ("ready", "endpoint", "image", "blocks", "pool") if k in status},
        "conditions": status.get("conditions", []),
        "accuracy": (status.get("plan") or {}).get("accuracy"),
        "advice": advise(resource, now),
    }
    print(_dump(found, arguments.output, lambda: "\n".join(_status_lines(resource, found, now))))
    is_well = (
        _condition(status, "Available").get("status") == "True"
        and _condition(status, "Degraded").get("status") == "False"
    )
    return 0 if is_well else 1


def fetch(arguments: argparse.Namespace, kubectl: Kubectl) -> Json:
    """Return the QwenDeployment that the arguments name. Raises KubectlError."""
    found: Json = kubectl.get(RESOURCE, arguments.name, *scope(arguments.namespace))
    return found


def _plan_text(plan: Json, form: str) -> str:
    if form == "flags":
        return render.flag_words(plan)

    def lines() -> str:
        found = render.plan_lines(plan)
        if accuracy := plan.get("accuracy"):
            found += ["", *render.accuracy_lines(accuracy)]
        return "\n".join(found)

    return _dump(plan, form, lines)


def _status_lines(resource: Json, found: Json, now: datetime) -> list[str]:
    status = resource.get("status") or {}
    lines = [
        f"{found['name']}: {found['model']}, {found.get('ready', '0/?')} pods ready",
        f"endpoint: {found.get('endpoint', 'none yet')}",
    ]
    if conditions := found["conditions"]:
        ages = [_age(c["lastTransitionTime"], now) for c in conditions]
        lines += ["", *render.condition_lines(conditions, ages)]
    else:
        lines += ["", "no condition yet: does the operator run?"]
    if blocks := found.get("blocks"):
        lines += ["", f"blocks  {render.blocks_line(blocks)}"]
    if accuracy := found["accuracy"]:
        lines += ["", *render.accuracy_lines(accuracy)]
    elif plan := status.get("plan"):
        lines += ["", *render.ledger_lines(plan)]
    if found["advice"]:
        lines += ["", "ADVICE"]
        lines += [line for sentence in found["advice"] for line in render.indent(sentence)]
    return lines


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})


def _age(time: str, now: datetime) -> str:
    return render.duration((now - datetime.fromisoformat(time)).total_seconds())


def _dump(found: Json, form: str, text: Callable[[], str]) -> str:
    if form == "json":
        return json.dumps(found, indent=2, ensure_ascii=False)
    if form == "yaml":
        return str(yaml.safe_dump(dict(found), sort_keys=False, allow_unicode=True)).rstrip()
    return text()
