"""MetricsContract: what is missing is told by name, and `helm test` fails on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from qwen_operator import keda, self_test
from qwen_operator.contract import Answers, contract_condition
from qwen_operator.contract_check import ContractCheck
from qwen_operator.errors import ApiError, UnavailableError
from qwen_operator.resources import Owner, build_autoscaler
from qwen_operator.series import OperatorSeries, Tally
from qwen_operator.spec_autoscaling import AutoscalingSpec

KEY = ("ns", "chat")
CLOCK = [1000.0]
SPEC = AutoscalingSpec(max_replicas=3)
HPA = build_autoscaler(Owner("ns", "chat", "uid"), SPEC)


class Api:
    """The external metrics API, with or without values."""

    def __init__(self, items: list[dict[str, Any]] | ApiError) -> None:
        self.items = items
        self.asked: list[tuple[str, str, str]] = []

    async def fetch_metric(self, namespace: str, metric: str, selector: str) -> Any:
        self.asked.append((namespace, metric, selector))
        if isinstance(self.items, ApiError):
            raise self.items
        return self.items


def check(api: Api, silent: dict[str, str] | None = None) -> ContractCheck:
    return ContractCheck(api, lambda _: silent or {}, lambda: CLOCK[0])  # type: ignore[arg-type]


async def test_an_hpas_query_is_asked_as_the_hpa_asks_it() -> None:
    api = Api([{"value": "2"}])
    answers = await check(api).ask(KEY, HPA, None)
    assert api.asked == [("ns", "qwen_replicas_needed", "qwenoperator.io/deployment=chat")]
    found = contract_condition(answers, ready=2)
    assert (found.status, found.reason) == (True, "SeriesFound")
    assert "qwen_replicas_needed find a value" in found.message


async def test_what_is_found_is_asked_for_again_after_a_minute_and_what_is_not_sooner() -> None:
    api = Api([{"value": "2"}])
    asking = check(api)
    first = await asking.ask(KEY, HPA, None)
    api.items = []
    assert await asking.ask(KEY, HPA, None) == first
    CLOCK[0] += 61
    assert not (await asking.ask(KEY, HPA, None)).are_whole
    api.items = [{"value": "2"}]
    assert not (await asking.ask(KEY, HPA, None)).are_whole
    CLOCK[0] += 11
    assert (await asking.ask(KEY, HPA, None)).are_whole
    assert len(api.asked) == 3
    asking.forget(KEY)
    await asking.ask(KEY, HPA, None)
    assert len(api.asked) == 4


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "no value for qwenoperator.io/deployment=chat"),
        (UnavailableError(503, "", "service unavailable"), "the API server says service unavail"),
    ],
)
async def test_a_query_that_finds_nothing_is_named(items: Any, words: str) -> None:
    found = contract_condition(await check(Api(items)).ask(KEY, HPA, None), ready=1)
    assert (found.status, found.reason) == (False, "NoSeries")
    assert f"qwen_replicas_needed: {words}" in found.message


async def test_a_figure_that_an_engine_no_longer_tells_is_named() -> None:
    silent = {"chat-1": "num_free_gpu_blocks is missing"}
    found = contract_condition(await check(Api([{}]), silent).ask(KEY, HPA, None), ready=2)
    assert (found.status, found.reason) == (False, "BadFigures")
    assert "1 of 2 ready pods" in found.message
    assert "chat-1: num_free_gpu_blocks is missing" in found.message


def test_without_a_ready_pod_nothing_is_said() -> None:
    assert contract_condition(Answers(), ready=0).status is None


@pytest.fixture
async def figures() -> AsyncIterator[str]:
    """What KEDA asks, with one of two values renamed."""

    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"replicas": 2, "is_busy": 1})

    app = web.Application()
    app.router.add_get("/figures", handle)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/figures"))
    await server.close()


async def test_kedas_triggers_are_asked_at_their_urls_and_read_at_their_places(
    figures: str,
) -> None:
    body = keda.scaled_object_body("chat", SPEC, url=figures, may_be_zero=False)
    asking = check(Api([]))
    answers = await asking.ask(KEY, None, {"spec": body})
    asking.forget(KEY)
    gone = await asking.ask(
        KEY, None, {"spec": keda.scaled_object_body(
            "chat", SPEC, url="http://127.0.0.1:1/", may_be_zero=False)}
    )  # fmt: skip
    await asking.close()
    assert dict(answers.missing) == {f"{figures} (busy)": "no number at busy"}
    assert len(answers.asked) == 2
    assert len(gone.missing) == 2


def served(*reasons: tuple[str, str]) -> str:
    tally = Tally()
    for status, reason in reasons:
        condition = {"type": "MetricsContract", "status": status, "reason": reason}
        tally.conditions["ns", reason.lower()] = [condition]
    return OperatorSeries(tally, list, dict).render().decode()


def failures(series: str, lists: str = '"qwendeployments" "qwen_replicas_needed"') -> list[str]:
    def get(url: str) -> str:
        return series if url.startswith("http:") else lists

    env = {"QWEN_FIGURES_URL": "http://figures/metrics", "QWEN_TEST_METRICS_API": "true"}
    return list(self_test.run_checks(env, get))


def test_helm_test_passes_where_all_is_there() -> None:
    assert failures(served(("True", "SeriesFound"), ("Unknown", "NothingToRead"))) == []


def test_helm_test_names_what_is_not() -> None:
    [broken] = failures(served(("True", "SeriesFound"), ("False", "NoSeries")))
    assert "ns/noseries: MetricsContract is False" in broken
    [no_api] = failures(served(), lists='"qwendeployments"')
    assert "HPAs can read the operator's metrics" in no_api
    assert "qwen_operator_info" in failures("qwen_other 1\n")[0]


def test_helm_test_fails_where_nobody_answers() -> None:
    def get(url: str) -> str:
        raise OSError(f"no route to {url}")

    env = {"QWEN_FIGURES_URL": "http://figures/metrics", "QWEN_TEST_METRICS_API": "true"}
    assert len(list(self_test.run_checks(env, get))) == 3
