"""The engine's flags, which `serve` and `bench` share: vLLM's names, so that scripts carry over.

Used by `cli`. Owns what a flag's text means; what is planned when it is left out is the planner's
affair. Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from qwen_engine.flag_values import (
    LONGEST,
    context_length,
    data_type,
    kv_cache_type,
    only,
    token_count,
)
from qwen_engine.hub import ModelSource
from qwen_engine.media_flags import add_domain_flag, add_picture_flags
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands, InvalidDemandError

# vLLM's flags that this version lacks. Named here so that a script learns that they are known but
# not honoured, which "unrecognized arguments" does not say.
NOT_YET = frozenset({
    "allow-credentials", "allowed-origins", "api-server-count", "async-scheduling",
    "attention-backend", "block-manager-version", "chat-template-content-format",
    "compilation-config", "config", "config-format", "cpu-offload-gb", "data-parallel-size",
    "disable-log-requests", "disable-log-stats", "distributed-executor-backend",
    "enable-expert-parallel", "enable-log-requests", "enable-lora",
    "enable-reasoning", "enable-sleep-mode", "guided-decoding-backend", "headless",
    "hf-config-path", "hf-overrides", "kv-cache-memory-bytes", "kv-offloading-size",
    "kv-transfer-config", "load-format", "logits-processors",
    "long-prefill-token-threshold", "lora-modules", "max-log-len", "max-logprobs",
    "max-lora-rank", "max-loras", "max-num-partial-prefills",
    "no-enable-chunked-prefill", "otlp-traces-endpoint", "override-generation-config",
    "response-role", "return-tokens-as-token-ids",
    "root-path", "rope-scaling", "rope-theta", "runner", "scheduling-policy",
    "speculative-config", "ssl-certfile", "ssl-keyfile", "structured-outputs-config", "task",
    "tokenizer", "tokenizer-mode", "tokenizer-revision", "tool-parser-plugin",
    "uvicorn-log-level",
})  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Takes --max_model_len for --max-model-len, as vLLM does, and knows vLLM's other flags."""

    def __init__(self, **settings: object) -> None:
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def parse_or_exit(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words; exit with 2 and a sentence if one is wrong."""
        known, unknown = self.parse_known_args([_with_dashes(word) for word in words])
        for word in unknown:
            name = word.lstrip("-").partition("=")[0]
            if word.startswith("--") and name in NOT_YET:
                self.error(f"--{name} is not supported by this version of qwen-engine")
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def add_model_argument(parser: argparse.ArgumentParser, *, text: str) -> None:
    parser.add_argument("model_positional", nargs="?", metavar="MODEL", help=text)
    parser.add_argument("--model", metavar="MODEL", help="the same, as a flag")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of model, planning and engine."""
    _add_model_flags(parser.add_argument_group("model"))
    add_planned_flags(parser)
    _add_other_flags(parser.add_argument_group("engine"))


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--served-model-name",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names that requests use; the first one is reported (default: MODEL)",
    )
    add("--revision", help="branch, tag or commit on the hub")
    add("--download-dir", type=Path, metavar="DIR", help="cache of downloads (default: HF_HOME)")
    add("--chat-template", metavar="FILE", help="use this chat template instead of the model's")
    add(
        "--generation-config",
        choices=("auto", "vllm"),
        default="auto",
        help="auto: where a request is silent, take temperature and such from the model's "
        "generation_config.json; vllm: take OpenAI's defaults",
    )
    add(
        "--trust-remote-code",
        action=_Refuse,
        nargs=0,
        help=argparse.SUPPRESS,
        reason="we run no code from checkpoints; models that need it are not supported",
    )


def add_planned_flags(parser: argparse.ArgumentParser) -> None:
    """Add the settings that the planner computes."""
    add = parser.add_argument_group(
        "planned settings", "Each one left out is computed from model and device, with its reason."
    ).add_argument
    add(
        "--dtype",
        type=data_type,
        default="auto",
        metavar="TYPE",
        help="auto, bfloat16, float16 or float32 (default: auto)",
    )
    add(
        "--quantization",
        "-q",
        default="none",
        metavar="METHOD",
        help="int8: make the weights 8-bit while they are loaded, half the bytes of bfloat16 "
        "(default: none)",
    )
    add(
        "--kv-cache-dtype",
        type=kv_cache_type,
        default="auto",
        metavar="TYPE",
        help="auto (that of --dtype), int8 or fp8: 8 bits hold nearly twice the tokens",
    )
    add(
        "--max-model-len",
        type=context_length,
        metavar="N",
        help="tokens of prompt and answer together; 8k is 8,000 and 8K is 8,192; auto is the "
        "longest that fits",
    )
    add("--block-size", type=int, metavar="N", help="tokens of one KV block: 16, 32, 64 or 128")
    add(
        "--gpu-memory-utilization",
        type=float,
        metavar="F",
        help="share of the device's memory to use, 0.05 to 1 (on CPU: of the memory limit)",
    )
    add("--max-num-batched-tokens", type=token_count, metavar="N", help="tokens of one step")
    add("--max-num-seqs", type=int, metavar="N", help="requests running at once")
    add(
        "--num-gpu-blocks-override",
        type=int,
        metavar="N",
        help="KV blocks, whatever the memory says (for tests)",
    )
    add(
        "--swap-space",
        type=float,
        metavar="GIB",
        help="host memory for requests that must make room for others; 0 computes them again",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute a shared beginning of prompts once (default: on)",
    )

    add_picture_flags(add)


def _add_other_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto takes the first GPU if there is one (default: auto)",
    )
    add(
        "--preemption-mode",
        choices=("auto", "swap", "recompute"),
        default="auto",
        help="with swap space: auto takes what costs less by two rates measured at start",
    )
    add("--seed", type=int, default=0, metavar="N", help="of requests that bring none (default: 0)")
    add(
        "--enforce-eager",
        action="store_true",
        help="run without CUDA graphs; this version always does",
    )
    add_domain_flag(add)
    add("--enable-chunked-prefill", action="store_true", help=argparse.SUPPRESS)  # always on
    # What scripts pass out of habit and what is true here anyway.
    for name, value in (("tensor-parallel-size", "1"), ("pipeline-parallel-size", "1")):
        add(f"--{name}", type=only(value), help=argparse.SUPPRESS)
    add("-tp", dest="tensor_parallel_size", type=only("1"), help=argparse.SUPPRESS)


def engine_options(parser: Parser, arguments: argparse.Namespace) -> EngineOptions:
    """Return the flags as options; exit with 2 and a sentence if one is out of range."""
    return EngineOptions(
        model=model_argument(parser, arguments),
        source=ModelSource(revision=arguments.revision, download_dir=arguments.download_dir),
        served_model_names=tuple(arguments.served_model_name),
        device=arguments.device,
        demands=demands(parser, arguments),
        chat_template=_read_template(parser, arguments.chat_template),
        use_recommended_sampling=arguments.generation_config == "auto",
        preemption_mode=arguments.preemption_mode,
        seed=arguments.seed,
        allowed_media_domains=tuple(arguments.allowed_media_domains),
    )


def model_argument(parser: Parser, arguments: argparse.Namespace) -> str:
    given = {arguments.model_positional, arguments.model} - {None}
    if not given:
        parser.error("MODEL is missing: give a folder or a hub id such as Qwen/Qwen3-0.6B")
    if len(given) > 1:
        parser.error("MODEL and --model name different models: give one of them")
    return str(given.pop())


def demands(parser: Parser, arguments: argparse.Namespace) -> Demands:
    """Return the planned settings that were given."""
    try:
        return Demands(
            max_model_len=arguments.max_model_len or None,
            longest_context=arguments.max_model_len == LONGEST,
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
            block_size=arguments.block_size,
            gpu_memory_utilization=arguments.gpu_memory_utilization,
            dtype=arguments.dtype,
            quantization=arguments.quantization,
            kv_cache_dtype=arguments.kv_cache_dtype,
            enable_prefix_caching=arguments.enable_prefix_caching,
            num_gpu_blocks_override=arguments.num_gpu_blocks_override,
            swap_space=arguments.swap_space,
            limit_mm_per_prompt=arguments.limit_mm_per_prompt,
            mm_processor_kwargs=arguments.mm_processor_kwargs,
            encoder_cache_tokens=arguments.encoder_cache_tokens,
        )
    except InvalidDemandError as error:
        parser.error(f"--{error.field.replace('_', '-')}: {error}")


class _Refuse(argparse.Action):
    """A flag that exists to say no, with the reason."""

    def __init__(self, *, reason: str, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._reason = reason

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(f"{self.option_strings[0]} is refused: {self._reason}")


def _read_template(parser: Parser, given: str | None) -> str | None:
    """Return a template's text: the file's, or the argument itself if it is one."""
    if given is None or "{%" in given or "{{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        parser.error(f"--chat-template: {given} cannot be read: {error.strerror}")
