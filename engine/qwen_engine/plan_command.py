"""`qwen-engine plan`: the plan for a model on a device, without either being here."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from qwen_engine.errors import ModelNotFoundError
from qwen_engine.flags import (
    Parser,
    add_model_argument,
    add_planned_flags,
    demands,
    model_argument,
)
from qwen_engine.hub import ModelSource, fetch_config
from qwen_engine.planning import (
    ENGINES,
    USUAL_GPUS,
    Demands,
    Device,
    DoesNotFitError,
    ModelShape,
    Plan,
    PlanningError,
    UnknownModelError,
    compare,
    comparison_to_list,
    cpu_device,
    find_model,
    gpu_from_spec,
    gpu_products,
    make_plan,
    parse_bytes,
    parse_model_config,
    plan_to_dict,
    product_named,
    published_ids,
    read_model_facts,
    refusal_to_dict,
    render_comparison,
    render_flags,
    render_plan,
)
from qwen_engine.tuning import local_device, read_shape

_EPILOG = """\
examples:
  qwen-engine plan Qwen/Qwen3-8B --gpu NVIDIA-L4
  qwen-engine plan Qwen/Qwen3-0.6B --cpu --memory 8Gi --max-model-len 8K
  qwen-engine plan ./my-model --gpu MY-CARD --gpu-memory-mib 24576 --compute-capability 8.9 -o json
  qwen-engine plan Qwen/Qwen3-235B-A22B-FP8 --engine vllm --gpu NVIDIA-H200 --gpu-count 8 -o flags
  qwen-engine plan Qwen/Qwen3-14B --compare NVIDIA-L4 NVIDIA-L40S NVIDIA-H200
"""


def run_plan(words: Sequence[str]) -> int:
    """Print a plan; return the exit code."""
    parser = _parser()
    arguments = parser.parse_or_exit(words)
    if arguments.list_models or arguments.list_gpus:
        print("\n".join(published_ids() if arguments.list_models else sorted(gpu_products())))
        return 0
    wanted = demands(parser, arguments)
    try:
        wanted = replace(
            wanted,
            engine=arguments.engine,
            engine_version=arguments.engine_version,
            tensor_parallel_size=arguments.tensor_parallel_size,
            enforce_eager=arguments.enforce_eager,
        )
        shape = _shape(model_argument(parser, arguments), for_any_engine=wanted.engine != "qwen")
        if arguments.compare is not None:
            print(_compare(shape, arguments, wanted))
            return 0
        plan = make_plan(shape, _device(parser, arguments), wanted)
    except PlanningError as error:
        if isinstance(error, DoesNotFitError) and arguments.output in ("json", "yaml"):
            print(_dump(refusal_to_dict(error), arguments.output))
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
    add(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "flags"),
        default="table",
        help="form of the answer; flags is the command to paste (default: table)",
    )
    add("--list-models", action="store_true", help="print the published ids that are known")
    add("--list-gpus", action="store_true", help="print the GPU products that are known")
    _add_device_flags(parser.add_argument_group("device"))
    _add_engine_flags(parser.add_argument_group("engine"))
    add_planned_flags(parser)
    return parser


def _add_device_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--gpu", metavar="PRODUCT", help="GPU as its node label names it, such as NVIDIA-L4")
    add(
        "--gpu-memory-mib",
        type=int,
        metavar="MIB",
        help="the GPU's memory as nvidia-smi prints it, for products not in the catalogue",
    )
    add("--compute-capability", type=_capability, metavar="X.Y", help="such as 8.9, likewise")
    add("--gpu-count", type=int, default=1, metavar="N", help="GPUs one pod may have (default: 1)")
    add(
        "--compare",
        nargs="*",
        metavar="PRODUCT",
        help="show several GPUs side by side; without products, a usual dozen",
    )
    add("--cpu", action="store_true", help="plan for CPU")
    add("--memory", metavar="SIZE", help="with --cpu: the memory limit, such as 8Gi")


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--engine", choices=ENGINES, default="qwen", help="which engine runs it (default: qwen)")
    add("--engine-version", metavar="X.Y.Z", help="release of vLLM (default: the newest known)")
    add("--tensor-parallel-size", "-tp", type=int, metavar="N", help="with vLLM: GPUs together")
    add("--enforce-eager", action="store_true", help="with vLLM: no CUDA graphs")


def _capability(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no capability such as 8.9")
    return int(match[1]), int(match[2])


def _shape(model: str, *, for_any_engine: bool) -> ModelShape:
    path = Path(model).expanduser()
    if path.exists():
        return read_shape(path, for_any_engine=for_any_engine)
    try:
        return find_model(model)
    except UnknownModelError as unknown:
        return _shape_from_hub(model, unknown, for_any_engine=for_any_engine)


def _shape_from_hub(model: str, unknown: UnknownModelError, *, for_any_engine: bool) -> ModelShape:
    """Ask the hub for the config.json of an id that the catalogue lacks."""
    if find_spec("huggingface_hub") is None:  # it comes with the engine, not with the planner
        raise unknown
    try:
        config = fetch_config(model, ModelSource())
    except ModelNotFoundError as error:
        raise UnknownModelError(model, asked=str(error)) from error
    read = read_model_facts if for_any_engine else parse_model_config
    return read(config, model_id=model)


def _device(parser: Parser, arguments: argparse.Namespace) -> Device:
    """Return the device that was named; without one, this machine."""
    wants_gpu = arguments.gpu is not None or arguments.gpu_memory_mib is not None
    if wants_gpu and (arguments.cpu or arguments.memory):
        parser.error("--gpu and --cpu exclude each other")
    if arguments.gpu_count < 1:
        parser.error(f"--gpu-count {arguments.gpu_count}: must be at least 1")
    if wants_gpu:
        return _gpu(arguments, arguments.gpu, arguments.gpu_memory_mib)
    if arguments.memory is None:
        return local_device("cpu" if arguments.cpu else "auto")
    try:
        return cpu_device(parse_bytes(arguments.memory), source="--memory")
    except ValueError as error:
        parser.error(f"--memory: {error}")


def _gpu(arguments: argparse.Namespace, name: str | None, memory_mib: int | None) -> Device:
    product = (product_named(name) or name) if name and memory_mib is None else name
    found = gpu_from_spec(product, memory_mib, capability=arguments.compute_capability)
    count = max(arguments.gpu_count, arguments.tensor_parallel_size or 1)
    return replace(found, count=count)


def _compare(shape: ModelShape, arguments: argparse.Namespace, wanted: Demands) -> str:
    names = arguments.compare or ([arguments.gpu] if arguments.gpu else []) or USUAL_GPUS
    devices = [_gpu(arguments, name, None) for name in names]
    length, rows = compare(shape, devices, wanted)
    if arguments.output == "table":
        return render_comparison(shape, length, rows)
    return _dump(comparison_to_list(length, rows), arguments.output)


def _render(plan: Plan, form: str) -> str:
    if form == "table":
        return render_plan(plan)
    return render_flags(plan) if form == "flags" else _dump(plan_to_dict(plan), form)


def _dump(document: Any, form: str) -> str:
    if form == "yaml":
        return str(yaml.safe_dump(document, sort_keys=False)).rstrip()
    return json.dumps(document, indent=2)
