"""Whatever the operator writes into status, the CRD declares: the API server refuses the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome
from qwen_operator.status import Reading
from tests.unit.operator_states import gpu_spec, h100, l4, look, pod, resource, rolled_out, settle
from tests.unit.operator_states import with_memory as remember

WARNED = {"engine": {"overrides": {"gpuMemoryUtilization": 0.97}}}
CRD = Path(__file__).parents[2] / "crds" / "qwendeployments.yaml"


def undeclared(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths that a schema does not know."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, item in value.items():
            if key in known:
                yield from undeclared(item, known[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        for item in value:
            yield from undeclared(item, schema["items"], f"{path}[]")


def everything() -> Outcome:
    """A status with all there can be: several pools, host memory, blocks and measurements."""
    nodes = (remember(l4(), 64), h100())
    about, observed = settle(resource(gpu_spec(**WARNED)), Observed(nodes=nodes))
    observed = dataclasses.replace(
        rolled_out(observed, ready=1),
        pods=(pod("p0", ready=True),),
        readings={
            "p0": Reading({"total": 9, "free": 9, "used": 0, "cached": 0}, measured={"weights": 1})
        },
    )
    return look(about, observed)


def test_the_crd_declares_every_field_of_status() -> None:
    [version] = yaml.safe_load(CRD.read_text("utf-8"))["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    status = everything().status
    assert {"pools", "accuracy", "hostLedger", "notes", "warnings"} <= status["plan"].keys()
    assert list(undeclared(dict(status), schema, "status")) == []
    vllm = look(resource(gpu_spec(engine={"runtime": "VLLM"})), Observed(nodes=(l4(),))).status
    assert vllm["plan"]["engine"] == "vllm"
    assert list(undeclared(dict(vllm), schema, "status")) == []
    cpu = look(resource()).status
    assert list(undeclared(dict(cpu), schema, "status")) == []
