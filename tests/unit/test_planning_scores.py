"""The planner against start-ups that users published: as near as it was when this was written."""

from pathlib import Path

import pytest

from tests.cases.fitting import CONSTANTS, kv_error_gib, samples_of, summary
from tests.cases.records import read_records
from tests.cases.scoring import score, totals

HERE = Path(__file__).parents[1] / "cases" / "planner-logs.yaml"
SHARED = Path(__file__).parents[3] / "shared" / "cases" / "planner-logs.yaml"


@pytest.mark.parametrize("path", [HERE, SHARED], ids=["fixture", "shared"])
def test_published_start_ups_are_predicted(path):
    if not path.exists():
        pytest.skip("the full case file is not beside this repository")
    rows = [score(record) for record in read_records(path)]
    found = {name: (row["met"], row["of"]) for name, row in totals(rows).items()}
    assert found["weights 2%"] == (43, 43)
    assert found["weights 1%"][0] >= 42
    assert found["tokens 1%"] == (25, 26)
    assert found["kv 10%"][0] >= 27
    assert found["kv wide"][0] >= 29
    assert found["starts"][0] >= 45
    samples = samples_of(rows)
    errors = {sample.id: kv_error_gib(sample, CONSTANTS) for sample in samples}
    assert summary(samples, errors)["median"] <= 0.1
