"""`qwen-engine plan`: the plan for a model on a device, without either being here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from qwen_engine.flags import (
    Parser,
    add_model_argument,
    add_planned_flags,
    demands,
    model_argument,
)
from qwen_engine.planning import (
    Device,
    ModelShape,
    Plan,
    PlanningError,
    cpu_device,
    find_model,
    gpu_from_spec,
    gpu_products,
    make_plan,
    model_ids,
    parse_bytes,
    plan_to_dict,
    render_plan,
)
from qwen_engine.tuning import local_device, read_shape

_EPILOG = """\
examples:
  qwen-engine plan Qwen/Qwen3-8B --gpu NVIDIA-L4
  qwen-engine plan Qwen/Qwen3-0.6B --cpu --memory 8Gi --max-model-len 8K
  qwen-engine plan ./my-model --gpu MY-CARD --gpu-memory-mib 24576 -o json
"""


def run_plan(words: Sequence[str]) -> int:
    """Print a plan; return the exit code."""
    parser = _parser()
    arguments = parser.parse_or_exit(words)
    if arguments.list_models or arguments.list_gpus:
        print("\n".join(model_ids() if arguments.list_models else sorted(gpu_products())))
        return 0
    wanted = demands(parser, arguments)
    try:
        shape = _shape(model_argument(parser, arguments))
        plan = make_plan(shape, _device(parser, arguments), wanted)
    except PlanningError as error:
        parser.exit(1, f"qwen-engine plan: {error}\n")
    print(_render(plan, arguments.output))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="qwen-engine plan",
        description="Compute every engine setting for a model on a device, and show the bytes. "
        "Neither the model's weights nor the device need be here.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_argument(parser, text="a published id, a folder, or a config.json")
    add = parser.add_argument
    add("--gpu", metavar="PRODUCT", help="GPU as its node label names it, such as NVIDIA-L4")
    add(
        "--gpu-memory-mib",
        type=int,
        metavar="MIB",
        help="the GPU's memory as nvidia-smi prints it, for products not in the catalogue",
    )
    add("--cpu", action="store_true", help="plan for CPU")
    add("--memory", metavar="SIZE", help="with --cpu: the memory limit, such as 8Gi")
    add(
        "-o",
        "--output",
        choices=("table", "json", "yaml"),
        default="table",
        help="form of the answer (default: table)",
    )
    add("--list-models", action="store_true", help="print the published ids that are known")
    add("--list-gpus", action="store_true", help="print the GPU products that are known")
    add_planned_flags(parser)
    return parser


def _shape(model: str) -> ModelShape:
    path = Path(model).expanduser()
    return read_shape(path) if path.exists() else find_model(model)


def _device(parser: Parser, arguments: argparse.Namespace) -> Device:
    """Return the device that was named; without one, this machine."""
    wants_gpu = arguments.gpu is not None or arguments.gpu_memory_mib is not None
    if wants_gpu and (arguments.cpu or arguments.memory):
        parser.error("--gpu and --cpu exclude each other")
    if wants_gpu:
        return gpu_from_spec(arguments.gpu, arguments.gpu_memory_mib)
    if arguments.memory is None:
        return local_device("cpu" if arguments.cpu else "auto")
    try:
        return cpu_device(parse_bytes(arguments.memory), source="--memory")
    except ValueError as error:
        parser.error(f"--memory: {error}")


def _render(plan: Plan, form: str) -> str:
    if form == "json":
        return json.dumps(plan_to_dict(plan), indent=2)
    if form == "yaml":
        return str(yaml.safe_dump(plan_to_dict(plan), sort_keys=False)).rstrip()
    return render_plan(plan)
