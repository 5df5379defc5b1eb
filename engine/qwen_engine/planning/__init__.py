"""The planner: model facts, device facts and demands in; a plan with its ledger out.

Pure: no torch, no aiohttp, no I/O beyond its own data files. The operator, the command line and
the engine all call `make_plan`.
"""

from qwen_engine.planning.catalogue import find_model, model_ids, published_ids, variants_of
from qwen_engine.planning.compare import (
    USUAL_GPUS,
    compare,
    comparison_to_list,
    render_comparison,
)
from qwen_engine.planning.demands import BLOCK_SIZES, ENGINES, Demands
from qwen_engine.planning.device import Device, cpu_device, gpu_from_spec
from qwen_engine.planning.errors import (
    DoesNotFitError,
    InvalidConfigError,
    InvalidDemandError,
    PlanningError,
    UnknownGpuError,
    UnknownModelError,
    UnsupportedModelError,
)
from qwen_engine.planning.gpus import gpu_products, product_named
from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.plan import Plan, Setting, make_plan
from qwen_engine.planning.quantities import format_bytes, parse_bytes, parse_quantity
from qwen_engine.planning.recommend import recommend_cpu_memory
from qwen_engine.planning.render import plan_to_dict, refusal_to_dict, render_flags, render_plan
from qwen_engine.planning.shape import ModelShape, read_model_facts
from qwen_engine.planning.support import parse_model_config
from qwen_engine.planning.weights import num_parameters, parameter_shapes, weight_bytes

__all__ = [
    "BLOCK_SIZES",
    "ENGINES",
    "USUAL_GPUS",
    "Demands",
    "Device",
    "DoesNotFitError",
    "InvalidConfigError",
    "InvalidDemandError",
    "LedgerLine",
    "ModelShape",
    "Plan",
    "PlanningError",
    "Setting",
    "UnknownGpuError",
    "UnknownModelError",
    "UnsupportedModelError",
    "compare",
    "comparison_to_list",
    "cpu_device",
    "find_model",
    "format_bytes",
    "gpu_from_spec",
    "gpu_products",
    "make_plan",
    "model_ids",
    "num_parameters",
    "parameter_shapes",
    "parse_bytes",
    "parse_model_config",
    "parse_quantity",
    "plan_to_dict",
    "product_named",
    "published_ids",
    "read_model_facts",
    "recommend_cpu_memory",
    "refusal_to_dict",
    "render_comparison",
    "render_flags",
    "render_plan",
    "variants_of",
    "weight_bytes",
]
