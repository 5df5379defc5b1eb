"""`kubectl qwen explain`: what the operator would plan for a manifest, before it is applied.

The operator's own `plan_spec` on the file's spec, and on the cluster's nodes or on a GPU that is
named. The API server's rules are checked only where the operator checks them too; `kubectl apply
--dry-run=server` asks for them all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from qwen_engine.planning import PlanningError
from qwen_operator import names
from qwen_operator.cli import render
from qwen_operator.cli.kubectl import Kubectl
from qwen_operator.decision import refusal_of
from qwen_operator.errors import InvalidSpecError, NoGpuFitsError, OperatorError
from qwen_operator.node_facts import NodeFacts, parse_node
from qwen_operator.spec import QwenDeploymentSpec, parse_spec
from qwen_operator.spec_plan import plan_spec
from qwen_operator.spec_warnings import warn_of_replicas

Json = Mapping[str, Any]
EPILOG = """\
examples:
  kubectl qwen explain -f qwen3-8b.yaml                    against the nodes of the cluster
  kubectl qwen explain -f qwen3-8b.yaml --gpu NVIDIA-L4    without a cluster
  cat *.yaml | kubectl qwen explain -f - -o json

exit codes: 0 all can be planned; 1 one cannot, and the reason says what to change; 2 wrong usage;
3 the cluster cannot be asked
"""


class InputError(OperatorError):
    """A file or flag that cannot be used."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    add = parser.add_argument
    add("-f", "--filename", action="append", required=True, metavar="FILE",
        help="manifest with QwenDeployments; - is standard input; may be repeated")  # fmt: skip
    add("--gpu", metavar="PRODUCT",
        help="plan for this GPU, such as NVIDIA-L4, and ask no cluster")  # fmt: skip
    add("--gpu-memory-mib", type=int, metavar="MIB",
        help="plan for a GPU of this memory, and ask no cluster")  # fmt: skip
    add("--offline", action="store_true",
        help="ask no cluster: the GPU is spec.gpu's")  # fmt: skip


def run(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    """Explain every QwenDeployment of the files; return the exit code."""
    found = [r for name in arguments.filename for r in _read(name)]
    if not found:
        raise InputError(f"no {names.KIND} in {', '.join(arguments.filename)}")
    answers = [_explain(resource, arguments, kubectl) for resource in found]
    if arguments.output == "json":
        print(json.dumps(answers, indent=2, ensure_ascii=False))
    elif arguments.output == "yaml":
        print(yaml.safe_dump(answers, sort_keys=False, allow_unicode=True), end="")
    else:
        print("\n\n".join("\n".join(_lines(answer)) for answer in answers))
    return 0 if all(answer["planned"] for answer in answers) else 1


def _read(name: str) -> Iterable[Json]:
    """Yield the QwenDeployments of a file; lists are opened, other kinds passed over."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
        documents = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{name}: {error}") from error
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        items = document.get("items") if document.get("kind") == "List" else [document]
        for item in items if isinstance(items, list) else []:
            if isinstance(item, Mapping) and item.get("kind") == names.KIND:
                yield item


def _explain(resource: Json, arguments: argparse.Namespace, kubectl: Kubectl) -> dict[str, Any]:
    metadata = resource.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    answer = {"name": name, "planned": False}
    try:
        spec = _with_gpu(parse_spec(_spec_of(resource)), arguments)
        nodes = _nodes(spec, arguments, kubectl)
        planned = plan_spec(spec, nodes)
    except (PlanningError, InvalidSpecError, NoGpuFitsError) as error:
        refusal = refusal_of(error)
        return {**answer, "reason": refusal.reason, "message": refusal.message}
    plan = {**planned.plan}
    selector = {**planned.node_selector, **(spec.template.get("nodeSelector") or {})}
    if crowding := warn_of_replicas(spec, plan, selector, nodes):
        plan["warnings"] = [*plan.get("warnings", ()), *crowding]
    return {**answer, "planned": True, "reason": "PlanFits", "plan": plan}


def _spec_of(resource: Json) -> Json:
    spec = resource.get("spec")
    if not isinstance(spec, Mapping):
        raise InvalidSpecError("spec", "is missing: spec.model.id names the model")
    return spec


def _with_gpu(spec: QwenDeploymentSpec, arguments: argparse.Namespace) -> QwenDeploymentSpec:
    if spec.gpu.count == 0 or not (arguments.gpu or arguments.gpu_memory_mib):
        return spec
    gpu = replace(
        spec.gpu,
        product=arguments.gpu or spec.gpu.product,
        memory_mib=arguments.gpu_memory_mib or (None if arguments.gpu else spec.gpu.memory_mib),
    )
    return replace(spec, gpu=gpu)


def _nodes(
    spec: QwenDeploymentSpec, arguments: argparse.Namespace, kubectl: Kubectl
) -> Sequence[NodeFacts]:
    is_offline = arguments.offline or arguments.gpu or arguments.gpu_memory_mib
    if spec.gpu.count == 0 or (is_offline and (spec.gpu.product or spec.gpu.memory_mib)):
        return ()
    if is_offline:
        raise InputError(
            "--offline asks no node, and spec.gpu names no GPU: give --gpu PRODUCT or "
            "--gpu-memory-mib MIB, or set spec.gpu.product"
        )
    return [parse_node(node) for node in kubectl.get("nodes")["items"]]


def _lines(answer: Json) -> list[str]:
    if answer["planned"]:
        return [f"{answer['name']}: can be planned", "", *render.plan_lines(answer["plan"])]
    return [
        f"{answer['name']}: cannot be planned ({answer['reason']})",
        *render.indent(answer["message"]),
    ]
