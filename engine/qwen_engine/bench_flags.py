"""The flags of `qwen-engine bench`. Light to import, as all flags are."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Literal

from qwen_engine.flag_values import token_count
from qwen_engine.flags import Parser, add_engine_flags, add_model_argument, engine_options
from qwen_engine.options import EngineOptions

_EPILOG = """\
examples:
  qwen-engine bench ./SmolLM2-135M-Instruct --input-len 128 --output-len 64
  qwen-engine bench --url http://localhost:8000 --num-prompts 64 --max-concurrency 16
  qwen-engine bench Qwen/Qwen3-0.6B --against transformers
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Either `engine`, which is loaded here, or `url`, a server that runs already."""

    engine: EngineOptions | None
    url: str | None
    api_key: str | None
    num_prompts: int
    input_len: int  # tokens
    output_len: int  # tokens
    max_concurrency: int
    seed: int
    against: Literal["transformers"] | None = None
    longest_len: int | None = None  # tokens; with `against`; None: what the model allows, to 4,096
    output: Literal["table", "json"] = "json"


def bench_parser() -> Parser:
    parser = Parser(
        prog="qwen-engine bench",
        description="Send prompts of random tokens, take a fixed number of tokens from each, and "
        "print times and rates as JSON; or, beside another library, a table with memory in it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_argument(parser, text="a folder, or a hub id; loaded into this process")
    add = parser.add_argument_group("load").add_argument
    add("--url", help="measure the server at this address over HTTP instead")
    add("--api-key", help="the server's key (default: QWEN_API_KEY)")
    add("--num-prompts", type=int, default=32, metavar="N", help="requests (default: 32)")
    add("--input-len", type=int, default=128, metavar="N", help="tokens each (default: 128)")
    add("--output-len", type=int, default=64, metavar="N", help="tokens each (default: 64)")
    add("--max-concurrency", type=int, default=8, metavar="N", help="at once (default: 8)")
    _add_comparison_flags(parser.add_argument_group("comparison"))
    add_engine_flags(parser)
    return parser


def _add_comparison_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--against",
        choices=("transformers",),
        help="measure it too, with the same checkpoint, each side in processes of its own: time "
        "to first token, throughput, most requests at once, memory at the longest context, "
        "growth of memory over ten rounds of dialogue",
    )
    add(
        "--longest-len",
        type=token_count,
        metavar="N",
        help="tokens of the longest context (default: the model's, at most 4096)",
    )
    add("-o", "--output", choices=("table", "json"), help="of a comparison (default: table)")


def bench_settings(parser: Parser, arguments: argparse.Namespace) -> BenchSettings:
    for name in ("num_prompts", "input_len", "output_len", "max_concurrency"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be at least 1")
    _check_comparison(parser, arguments)
    url = arguments.url.rstrip("/") if arguments.url else None
    if url is not None and not url.startswith(("http://", "https://")):
        parser.error("--url: must start with http:// or https://")
    return BenchSettings(
        engine=None if url else engine_options(parser, arguments),
        url=url,
        api_key=arguments.api_key or os.environ.get("QWEN_API_KEY"),
        num_prompts=arguments.num_prompts,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        max_concurrency=arguments.max_concurrency,
        seed=arguments.seed,
        against=arguments.against,
        longest_len=arguments.longest_len,
        output=arguments.output or ("table" if arguments.against else "json"),
    )


def _check_comparison(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.against is not None:
        if arguments.url:
            parser.error("--against loads the model on both sides here: leave --url out")
        if arguments.longest_len is not None and arguments.longest_len < 2:
            parser.error("--longest-len: must be at least 2, a prompt and an answer of one token")
    elif arguments.longest_len is not None or arguments.output == "table":
        parser.error("--longest-len and a table belong to a comparison: add --against transformers")
