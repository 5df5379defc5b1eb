"""The server's own settings. Made by `cli`, read by `app` and `run`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Literal

from qwen_engine.options import EngineOptions

MIB = 2**20

IPNetwork = IPv4Network | IPv6Network

ToolFormat = Literal["auto", "hermes", "none"]  # auto: if the chat template knows the tags
ReasoningFormat = Literal["auto", "qwen3", "none"]  # auto: if the chat template knows the tags


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    engine: EngineOptions
    host: str = "0.0.0.0"
    port: int = 8000  # 0: any free one, which the log names
    stats_port: int = 0  # a second one, where people's notes have /stats; 0: none
    api_keys: tuple[str, ...] = ()  # empty: no key is asked for
    max_queue: int = 256  # requests that may wait beyond max_num_seqs
    shutdown_timeout_seconds: float = 30.0  # for running answers after SIGTERM
    max_body_bytes: int = 32 * MIB
    # Of addresses that are not public, those from which pictures are fetched all the same.
    media_private_networks: tuple[IPNetwork, ...] = ()
    media_timeout_seconds: float = 20.0  # to fetch one picture or video
    request_timeout_seconds: float = 0.0  # of every answer; 0: none
    reasoning_parser: ReasoningFormat = "auto"
    tool_call_parser: ToolFormat = "auto"
    enable_auto_tool_choice: bool = True
