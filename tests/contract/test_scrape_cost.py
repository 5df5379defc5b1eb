"""The operator looks at many engines for little: the bench of the docs, small."""

from __future__ import annotations

from tests.bench.scrape_cost import run

# half a core for 400 answers a second, twice over: a busy machine's caches are cold
_MOST_MS_EACH = 2.5


def test_a_fleet_is_asked_and_decided_on_in_time_for_little() -> None:
    cost = run(deployments=20, pods=4, seconds=6.0, every=1.0)
    assert cost.decided == 20
    assert cost.answers > 40, "80 pods are asked every second, and every third for status too"
    assert cost.cores / cost.answers * 1000 < _MOST_MS_EACH
    assert cost.oldest_seconds < 10
