"""The benchmarks' played model does what the engine asks of a worker."""

from qwen_engine.sequence import SamplingParams
from tests.bench.stub import make_stub_engine


def test_a_played_engine_answers_to_the_end_and_gives_its_blocks_back() -> None:
    engine, _ = make_stub_engine(num_gpu_blocks=8, block_size=16, max_model_len=64)
    engine.add_request("one", [300, 301, 302], SamplingParams(max_tokens=5, ignore_eos=True))
    said = 0
    while engine.has_unfinished():
        said += sum(len(output.token_ids) for output in engine.step())
    assert said == 5
    assert engine.stats().num_used_blocks == 0
