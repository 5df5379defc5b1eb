"""Everything that is asked about the server: health, readiness, numbers, models, tokens."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from qwen_engine import __version__
from qwen_engine.errors import RequestError, UnknownModelError
from qwen_engine.planning import plan_to_dict
from qwen_engine.server.body import read_body
from qwen_engine.server.protocol.tokens import parse_detokenize, parse_tokenize
from qwen_engine.server.service import ModelService
from qwen_engine.server.state import STATE, ServerState

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def get_health(request: web.Request) -> web.Response:
    """Alive: the process answers and its engine has not died; a model that loads is alive."""
    is_dead = request.app[STATE].engine.died.done()
    return web.json_response(
        {"status": "dead" if is_dead else "ok"}, status=503 if is_dead else 200
    )


async def get_ready(request: web.Request) -> web.Response:
    """Ready: the model is loaded and new requests are accepted."""
    state = request.app[STATE]
    progress = state.progress
    body = {
        "status": "ready" if state.engine.is_accepting else _why_not(state),
        "progress": round(progress.loaded_share, 4),
        "bytes_done": progress.bytes_done,
        "bytes_total": progress.bytes_total,
    }
    if state.engine.is_accepting:
        return web.json_response(body)
    return web.json_response(body, status=503, headers={"Retry-After": "5"})


def _why_not(state: ServerState) -> str:
    """The stage of loading, or the end."""
    if state.engine.died.done():
        return "dead"
    return "stopping" if state.progress.stage == "ready" else state.progress.stage


async def get_stats(request: web.Request) -> web.Response:
    """Blocks, queue and memory of this moment; free + used = total."""
    state = request.app[STATE]
    service = state.require_service()
    stats = state.engine.stats
    assert stats is not None, "a loaded model has stats"
    body = {
        "model": service.names[0],
        "block_size": stats.block_size,
        **{f"num_{kind}_gpu_blocks": getattr(stats, f"num_{kind}_blocks") for kind in _BLOCKS},
        **{f"num_{kind}_cpu_blocks": getattr(stats, f"num_{kind}_swap_blocks") for kind in _BLOCKS},
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "num_requests_swapped": stats.num_swapped,
        "num_requests_finished": stats.num_finished,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "mm_cache_queries": stats.mm_cache_queries,
        "mm_cache_hits": stats.mm_cache_hits,
        "num_preemptions": stats.num_preemptions,
        "num_blocks_allocated": stats.blocks_allocated,
        "num_blocks_freed": stats.blocks_freed,
        "num_blocks_swapped_out": stats.blocks_swapped_out,
        "num_blocks_swapped_in": stats.blocks_swapped_in,
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.output_tokens,
        "max_model_len": service.max_model_len,
        "plan": plan_to_dict(service.launched.plan),
        "measured": service.launched.engine.measured.lines(),
        "start_seconds": dict(service.launched.start_seconds),
        "matrix_products": service.launched.engine.gemm_report,
    }
    return web.json_response(body)


_BLOCKS = ("total", "free", "used", "cached")


async def get_metrics(request: web.Request) -> web.Response:
    body = request.app[STATE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})


async def get_version(request: web.Request) -> web.Response:
    return web.json_response({"version": __version__})


async def list_models(request: web.Request) -> web.Response:
    service = request.app[STATE].require_service()
    models = [_model_body(service, name) for name in service.names]
    return web.json_response({"object": "list", "data": models})


async def get_model(request: web.Request) -> web.Response:
    service = request.app[STATE].require_service()
    name = request.match_info["name"]
    if name not in service.names:
        raise UnknownModelError(name[:200], served=service.names)
    return web.json_response(_model_body(service, name))


def _model_body(service: ModelService, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "qwen-engine",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.max_model_len,
        "media": service.media_limits,
    }


async def tokenize(request: web.Request) -> web.Response:
    service = request.app[STATE].require_service()
    wanted = await read_body(request, parse_tokenize)
    service.check_name(wanted.model)
    if wanted.prompt is None:
        if wanted.tools:
            service.require_tools(is_choice=False)
        media = await service.read_media(wanted.media, wanted.processor_settings)
        text = await service.render_chat(
            wanted.messages,
            add_generation_prompt=wanted.add_generation_prompt,
            continue_final_message=wanted.continue_final_message,
            variables=wanted.template_variables,
            tools=wanted.tools,
        )
        ids = (await service.encode_rendered(text, media)).token_ids
    else:
        special = wanted.add_special_tokens
        ids = await service.tokenize(wanted.prompt, add_special_tokens=special, param="prompt")
    strings = service.token_strings(ids) if wanted.return_token_strs else None
    body = {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids}
    return web.json_response({**body, "token_strs": strings})


async def detokenize(request: web.Request) -> web.Response:
    service = request.app[STATE].require_service()
    wanted = await read_body(request, parse_detokenize)
    service.check_name(wanted.model)
    if not wanted.tokens:
        return web.json_response({"prompt": ""})
    service.check_ids(wanted.tokens, "tokens")
    if len(wanted.tokens) > service.max_model_len:
        limit = service.max_model_len
        raise RequestError(f"tokens may have at most {limit} ids", param="tokens")
    return web.json_response({"prompt": await service.decode(wanted.tokens)})
