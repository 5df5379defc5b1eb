"""`qwen-engine`: reads the command line and calls the command.

Imports a command's code only when it runs, so `--help`, `--version` and `plan` need no torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import logging
import math
import os
import sys
from collections.abc import Sequence

from qwen_engine import __version__, environment
from qwen_engine.flags import Parser, add_engine_flags, add_model_argument, engine_options
from qwen_engine.plan_command import run_plan
from qwen_engine.server.settings import MIB, ServerSettings

STATS_PORT = 3001  # where people's notes on paged attention have /stats

_USAGE = """\
usage: qwen-engine COMMAND [MODEL] [flags]

Serves Qwen3, Qwen2 and Llama models with paged attention, behind an OpenAI-compatible API.

commands:
  serve MODEL    load a model and answer on port 8000: API, metrics and a chat page
  plan MODEL     show every setting and every byte for a model on a GPU or CPU
  bench MODEL    measure time to first token and tokens per second, also against transformers

MODEL is a folder with config.json and *.safetensors, or a hub id such as Qwen/Qwen3-0.6B.
`qwen-engine MODEL` means `qwen-engine serve MODEL`.
`qwen-engine COMMAND --help` lists a command's flags; `qwen-engine --version` the version.
"""
_SERVE_EPILOG = """\
Environment: HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE work as usual for downloads;
QWEN_API_KEY is an API key, as --api-key is, but does not show in the list of processes.
"""


def run(words: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if _is_model(command):
        command, rest = "serve", words  # as people type it after `docker run … IMAGE`
    match command:
        case "plan":
            return run_plan(rest)
        case "serve":
            return _serve(rest)
        case "bench":
            return _bench(rest)
        case "--version" | "-V":
            print(f"qwen-engine {__version__}")
            return 0
        case "--help" | "-h" | "help":
            print(_USAGE, end="")
            return 0
    print(f"qwen-engine: there is no command {command!r}\n\n{_USAGE}", end="", file=sys.stderr)
    return 2


def _is_model(word: str) -> bool:
    """Say whether a word in a command's place is a model: OWNER/NAME, or a folder with one."""
    return not word.startswith("-") and ("/" in word or os.path.exists(f"{word}/config.json"))


def _serve(words: Sequence[str]) -> int:
    parser = _serve_parser()
    arguments = parser.parse_or_exit(words)
    settings = _server_settings(parser, arguments)
    _require_extras(parser)
    _set_up_logging(arguments.log_level)
    environment.start_to_load_torch()
    with environment.importing():
        from qwen_engine.server.run import serve

    serve(settings)


def _bench(words: Sequence[str]) -> int:
    from qwen_engine.bench_flags import bench_parser, bench_settings

    parser = bench_parser()
    arguments = parser.parse_or_exit(words)
    settings = bench_settings(parser, arguments)
    if settings.url is None:
        _require_extras(parser)
    _set_up_logging("warning")
    if settings.against is not None:
        from qwen_engine.comparison.command import run_comparison

        return run_comparison(settings, words)
    from qwen_engine.bench import run_bench

    return run_bench(settings)


def _serve_parser() -> Parser:
    parser = Parser(
        prog="qwen-engine serve",
        description="Load a model and serve it: /v1/chat/completions, /v1/completions, /metrics, "
        "/stats and a chat page at /.",
        epilog=_SERVE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_argument(parser, text="a folder, or a hub id such as Qwen/Qwen3-0.6B")
    add_engine_flags(parser)
    _add_server_flags(parser.add_argument_group("server"))
    return parser


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="0.0.0.0", help="address to listen on (default: all)")
    add(
        "--port",
        type=int,
        default=8000,
        help="port to listen on; 0 is any free one (default: 8000)",
    )
    add(
        "--stats-port",
        type=int,
        metavar="PORT",
        help="second port that answers, for /stats; 0 is none (default: 3001, in Kubernetes none)",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="ask for this key on /v1, /tokenize and /detokenize; may be repeated",
    )
    add(
        "--max-queue",
        type=int,
        default=256,
        metavar="N",
        help="requests that may wait beyond --max-num-seqs; more get 429 (default: 256)",
    )
    add(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for running answers after SIGTERM (default: 30)",
    )
    add(
        "--request-timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="time for an answer from the arrival of its request; a request may ask for less by "
        "the header X-Request-Timeout; 0 is no limit (default: 0)",
    )
    add(
        "--allowed-media-networks",
        type=ipaddress.ip_network,
        nargs="+",
        default=[],
        metavar="NETWORK",
        help="private addresses that pictures and videos may be fetched from, such as 10.0.0.0/8 "
        "(default: none; public ones always, see --allowed-media-domains)",
    )
    add(
        "--media-timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time to fetch one picture or video (default: 20)",
    )
    add(
        "--max-body-mib",
        type=int,
        default=32,
        metavar="MIB",
        help="largest request body (default: 32)",
    )
    add(
        "--reasoning-parser",
        choices=("auto", "qwen3", "none"),
        default="auto",
        help="how thinking is told from the answer: auto takes qwen3's tags if the chat template "
        "knows them; none leaves them in the text (default: auto)",
    )
    add(
        "--tool-call-parser",
        choices=("auto", "hermes", "none"),
        default="auto",
        help="how calls of tools are told from text: auto takes hermes, which is Qwen3's, if the "
        "chat template knows it; none refuses tools (default: auto)",
    )
    add(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the model choose whether to call a tool (default: on)",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least important lines to show (default: info)",
    )


def _server_settings(parser: Parser, arguments: argparse.Namespace) -> ServerSettings:
    keys = [*arguments.api_key, os.environ.get("QWEN_API_KEY", "")]
    if arguments.stats_port is None:
        # In a pod the one port is enough: it is what probes, Services and Prometheus are told.
        arguments.stats_port = 0 if "KUBERNETES_SERVICE_HOST" in os.environ else STATS_PORT
    for flag, port in (("--port", arguments.port), ("--stats-port", arguments.stats_port)):
        if not 0 <= port <= 65535:
            parser.error(f"{flag}: {port} is not between 0 and 65535")
    lowest = {"max_queue": 0, "shutdown_timeout": 0, "request_timeout": 0, "media_timeout": 1,
              "max_body_mib": 1}  # fmt: skip
    for name, low in lowest.items():
        if not low <= getattr(arguments, name) < math.inf:
            parser.error(f"--{name.replace('_', '-')}: must be at least {low}")
    return ServerSettings(
        engine=engine_options(parser, arguments),
        host=arguments.host,
        port=arguments.port,
        stats_port=arguments.stats_port,
        api_keys=tuple(key for key in keys if key),
        max_queue=arguments.max_queue,
        shutdown_timeout_seconds=arguments.shutdown_timeout,
        max_body_bytes=arguments.max_body_mib * MIB,
        request_timeout_seconds=arguments.request_timeout,
        media_private_networks=tuple(arguments.allowed_media_networks),
        media_timeout_seconds=arguments.media_timeout,
        reasoning_parser=arguments.reasoning_parser,
        tool_call_parser=arguments.tool_call_parser,
        enable_auto_tool_choice=arguments.enable_auto_tool_choice,
    )


def _require_extras(parser: Parser) -> None:
    """Exit with a sentence if the distribution was installed for planning only."""
    for module in ("torch", "transformers", "aiohttp"):
        if importlib.util.find_spec(module) is None:
            parser.exit(
                1, f"{parser.prog}: {module} is missing: pip install 'qwen-engine[serve]'\n"
            )


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        stream=sys.stderr,
    )
    for noisy in ("httpx", "httpx2", "httpcore", "filelock", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
