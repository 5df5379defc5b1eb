"""From the user's options to a loaded engine: find the model, plan, load.

Owns that order, its progress and the start-up log lines. Called by the server and by `bench`, in
the engine's thread. Knows no HTTP.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qwen_engine import environment
from qwen_engine.config import EngineConfig
from qwen_engine.errors import ModelNotFoundError
from qwen_engine.host_memory import StartMemory
from qwen_engine.hub import resolve_model
from qwen_engine.model_config import ModelConfig
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Plan, format_bytes, make_plan
from qwen_engine.start_times import StartTimes
from qwen_engine.structured import GrammarCompiler
from qwen_engine.tokenizer import Tokenizer
from qwen_engine.tuning import local_device, read_shape

if TYPE_CHECKING:
    from qwen_engine.llm_engine import LLMEngine
    from qwen_engine.loader import LoadProgress

log = logging.getLogger(__name__)

Stage = Literal["starting", "downloading", "loading", "ready"]

_SECONDS_BETWEEN_LINES = 5.0

# The sampling settings that a model's authors may recommend (vLLM, config/model.py,
# get_diff_sampling_param); a request's own values win.
_RECOMMENDABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a launch is; bytes of the stage, 0 of 0 where it has none."""

    stage: Stage
    bytes_done: int = 0
    bytes_total: int = 0

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights in memory."""
        return self.bytes_done if self.stage in ("loading", "ready") else 0

    @property
    def loaded_share(self) -> float:
        """From 0 to 1."""
        if self.stage == "ready":
            return 1.0
        return self.loaded_bytes / self.bytes_total if self.bytes_total else 0.0

    def describe(self) -> str:
        """Return it in words: `loading, 40% of 1.11 GiB`."""
        if not self.bytes_total:
            return self.stage
        percent = 100 * self.bytes_done // self.bytes_total
        return f"{self.stage}, {percent}% of {format_bytes(self.bytes_total)}"


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Launched:
    """A loaded engine with all that belongs to it."""

    engine: LLMEngine
    config: EngineConfig
    plan: Plan
    tokenizer: Tokenizer
    compiler: GrammarCompiler
    recommended_sampling: Mapping[str, float]
    start_seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage
    memory: StartMemory | None = None  # a CPU's, some of the cache perhaps not yet in place

    def finish_quietly(self, is_idle: Callable[[], bool]) -> bool:
        """Do what a start left for a quiet moment; return whether all is done.

        Put the rest of the KV cache in place, as long as nobody asks for anything; then prepare
        the vocabulary for grammars, for up to a second in which nothing else can run.
        """
        if self.memory is not None and not self.memory.cache.populate_while(is_idle):
            return False
        if is_idle():
            self.engine.grow_rest(self.compiler.prepare())
            return True
        return False


def launch(options: EngineOptions, report: Report) -> Launched:
    """Find, plan and load a model; takes from seconds to many minutes.

    Raises:
        EngineError: the model cannot be had or served, or a setting cannot be.
        PlanningError: it does not fit this machine; the message has the figures.
    """

    def on_download(done: int, total: int) -> None:
        report(Progress("downloading", done, total))

    times = StartTimes()
    report(Progress("starting"))
    path = resolve_model(options.model, options.source, on_progress=on_download)
    plan = _plan(options, path)
    config = _engine_config(options, path, plan)
    _log_plan(plan)
    memory = _reserve_memory(plan)
    times.mark("plan")
    tokenizer = Tokenizer.from_folder(path, chat_template=options.chat_template)
    times.mark("tokenizer")
    # torch takes a second to import; here, the server answers /health meanwhile.
    with environment.importing():
        from qwen_engine.llm_engine import LLMEngine

    times.mark("torch")
    engine = LLMEngine.from_config(
        config, on_progress=_LoadReporter(report), memory=memory, times=times
    )
    _log_memory(engine, plan)
    log.info("Start took %s", times.describe())
    recommended = {}
    if options.use_recommended_sampling:
        recommended = _read_recommended_sampling(path / "generation_config.json")
    compiler = _compiler(path, tokenizer)
    seconds = times.seconds()
    return Launched(engine, config, plan, tokenizer, compiler, recommended, seconds, memory)


def _plan(options: EngineOptions, path: Path) -> Plan:
    """Plan for this machine, under the name the user knows: a hub folder's own is a commit."""
    name = path.name if Path(options.model).is_dir() else options.model
    shape = replace(read_shape(path), model_id=name)
    return make_plan(shape, local_device(options.device), options.demands)


def _engine_config(options: EngineOptions, path: Path, plan: Plan) -> EngineConfig:
    return EngineConfig(
        model_path=path,
        served_model_names=options.served_model_names or (options.model,),
        dtype=plan.dtype,
        quantization="int8" if plan.model.int8_weights else "none",
        kv_cache_dtype=plan.model.kv_cache_dtype,
        device="cpu" if plan.device.kind == "cpu" else "cuda",
        max_model_len=plan.max_model_len,
        block_size=plan.block_size,
        num_gpu_blocks=plan.num_blocks,
        num_cpu_blocks=plan.num_cpu_blocks,
        preemption_mode=options.preemption_mode,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_num_seqs=plan.max_num_seqs,
        enable_prefix_caching=plan.enable_prefix_caching,
        seed=options.seed,
        encoder_cache_tokens=plan.encoder_cache_tokens,
        limit_mm_per_prompt=plan.limit_mm_per_prompt,
        mm_processor_kwargs=plan.mm_processor_kwargs,
        allowed_media_domains=options.allowed_media_domains,
    )


def _reserve_memory(plan: Plan) -> StartMemory | None:
    """Reserve what the model takes on a CPU and have it put in place while torch is imported.

    None, where there is not as much, leaves it to the worker to say so.
    """
    if plan.device.kind != "cpu":
        return None
    weights = sum(x.num_bytes for x in plan.ledger if x.component in ("weights", "vision-tower"))
    try:
        memory = StartMemory.reserve(
            weight_bytes=weights,
            cache_bytes=plan.num_blocks * plan.block_bytes,
            num_parts=2 * plan.model.num_layers,  # keys and values of each
        )
    except (OSError, OverflowError, ValueError):
        return None
    memory.start_to_populate()
    return memory


def _compiler(path: Path, tokenizer: Tokenizer) -> GrammarCompiler:
    model = ModelConfig.from_folder(path)
    own = tokenizer.eos_token_id
    return GrammarCompiler(
        tokenizer,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids | (frozenset() if own is None else {own}),
    )


class _LoadReporter:
    """Reports each piece of the weights, and logs now and then how far it is."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last_line = time.monotonic()

    def __call__(self, progress: LoadProgress) -> None:
        done, total = progress.bytes_done, progress.bytes_total
        self._report(Progress("loading", done, total))
        now = time.monotonic()
        if done >= total or now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            percent = 100 * done // total if total else 100
            log.info("Loading weights: %d%% of %s", percent, format_bytes(total))


def _log_plan(plan: Plan) -> None:
    for setting in plan.settings:
        log.info("Plan: %s %s (%s)", setting.flag, setting.value, setting.reason)
    for warning in plan.warnings:
        log.warning("Plan: %s", warning)


def _log_memory(engine: LLMEngine, plan: Plan) -> None:
    measured, stats = engine.measured, engine.stats()
    log.info(
        "Paged attention is used: block size %d tokens, %s blocks in all for %s tokens",
        stats.block_size,
        f"{stats.num_total_blocks:,}",
        f"{stats.num_total_blocks * stats.block_size:,}",
    )
    log.info(
        "KV cache: %s (%s bytes); weights: %s; process: %s",
        format_bytes(measured.kv_cache_bytes),
        f"{measured.kv_cache_bytes:,}",
        format_bytes(measured.weights_bytes),
        format_bytes(measured.process_bytes),
    )
    if measured.vision_tower_bytes:
        log.info(
            "Vision tower: %s; encoder cache: %s tokens of pictures",
            format_bytes(measured.vision_tower_bytes),
            f"{plan.encoder_cache_tokens:,}",
        )
    if stats.num_total_swap_blocks:
        swap = format_bytes(measured.swap_bytes)
        log.info(
            "Swap space: %s blocks in host memory, %s", f"{stats.num_total_swap_blocks:,}", swap
        )
    log.info(
        "Memory utilisation: %g of %s (%s)",
        plan.gpu_memory_utilization,
        format_bytes(plan.device.memory_bytes),
        plan.device.source,
    )


def _read_recommended_sampling(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(file, f"cannot be read as JSON: {error}") from error
    values = {name: found.get(name) for name in _RECOMMENDABLE} if isinstance(found, dict) else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
