"""`LLM` in a script: vLLM's names, the server's answers, and nothing left behind."""

import json
import subprocess
import sys
from typing import Any

import pytest

from qwen_engine import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from qwen_engine.errors import InvalidRequestError, PromptTooLongError, RequestError
from tests.models.tiny import build_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=8)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(
        str(build_tiny("qwen3-tied")), device="cpu", dtype="float32", max_model_len=128,
        block_size=16, num_gpu_blocks_override=32, max_num_seqs=4,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _the_pool_is_whole_afterwards(llm: LLM) -> Any:
    yield
    stats = llm._engine.stats()
    assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_one_prompt_in_any_form_is_the_same_prompt(llm: LLM) -> None:
    text = "the quick fox"
    ids = llm._tokenizer.encode(text)
    forms: list[Any] = [text, [text], ids, [ids], {"prompt": text}, [{"prompt_token_ids": ids}]]
    answers = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    assert len({texts(answer)[0] for answer in answers}) == 1
    assert [answer[0].prompt_token_ids for answer in answers] == [ids] * 6
    assert [answer[0].prompt for answer in answers] == [text, text, None, None, text, None]
    first = answers[0][0].outputs[0]
    assert (len(first.token_ids), first.finish_reason, first.index) == (8, "length", 0)
    assert first.logprobs is first.cumulative_logprob is None


def test_many_prompts_are_answered_together_and_in_order(llm: LLM) -> None:
    prompts = [f"the {word} fox" for word in ("quick", "lazy", "brown") * 10]
    together = texts(llm.generate(prompts, GREEDY, use_tqdm=False))
    assert together == [texts(llm.generate(each, GREEDY, use_tqdm=False))[0] for each in prompts]


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    lengths = [1, 5, 3]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    with pytest.raises(InvalidRequestError, match="one for each of the 2 prompts"):
        llm.generate(["a", "b"], params, use_tqdm=False)


def test_choices_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=12, temperature=5)
    first, second = (llm.generate("the fox", params, use_tqdm=False)[0] for _ in range(2))
    assert [choice.index for choice in first.outputs] == [0, 1, 2]
    assert [c.text for c in first.outputs] == [c.text for c in second.outputs]
    assert len({choice.text for choice in first.outputs}) > 1


def test_stop_strings_and_tokens_end_an_answer(llm: LLM) -> None:
    whole = llm.generate("the fox", GREEDY, use_tqdm=False)[0].outputs[0]
    stop = whole.text[3:5]
    by_text = SamplingParams(temperature=0, max_tokens=8, stop=stop)
    ended = llm.generate("the fox", by_text, use_tqdm=False)[0].outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)
    assert ended.text == whole.text[: whole.text.index(stop)]
    token = whole.token_ids[2]
    by_token = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[token])
    ended = llm.generate("the fox", by_token, use_tqdm=False)[0].outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", token)


def test_logprobs_are_there_where_they_are_asked_for(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    output = llm.generate("the quick fox", params, use_tqdm=False)[0]
    answer = output.outputs[0]
    assert answer.logprobs is not None
    chosen = [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
    assert [each.rank for each in chosen] == [1] * 4
    assert answer.cumulative_logprob == pytest.approx(sum(each.logprob for each in chosen))
    scores = output.prompt_logprobs
    assert scores is not None
    assert scores[0] is None
    assert len(scores) == len(output.prompt_token_ids)
    assert all(token in scores[n] for n, token in enumerate(output.prompt_token_ids) if n)  # type: ignore[operator]


def test_an_answer_is_held_to_a_form(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["yes", "no"])
    params = SamplingParams(structured_outputs=form, max_tokens=20)
    assert texts(llm.generate(["a", "b"], params, use_tqdm=False))[0] in ("yes", "no")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), max_tokens=60)
    assert set(json.loads(texts(llm.chat(QUESTION, params, use_tqdm=False))[0])) == {"ok"}


def test_conversations_are_rendered_by_the_models_template(llm: LLM) -> None:
    one = llm.chat(QUESTION, GREEDY, use_tqdm=False)
    assert one[0].prompt is not None
    assert one[0].prompt.endswith("<|im_start|>assistant\n")
    two = llm.chat([QUESTION, QUESTION[:1]], GREEDY, use_tqdm=False)
    assert texts(two) == texts(one) * 2
    turns = [*QUESTION, {"role": "assistant", "content": "It is"}]
    more = llm.chat(turns, GREEDY, use_tqdm=False, continue_final_message=True)
    assert more[0].prompt is not None
    assert more[0].prompt.endswith("It is")


def test_what_cannot_be_is_refused_before_anything_is_computed(llm: LLM) -> None:
    before = llm._engine.stats().prompt_tokens
    with pytest.raises(PromptTooLongError, match="128 tokens"):
        llm.generate(["a", [5] * 128], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match=r"prompts\[1\]"):
        llm.generate(["a", [10**9]], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="prompt_token_ids"):
        llm.generate({"text": "a"}, GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match=r"messages\[0\]"):
        llm.chat([{"role": "nobody", "content": "a"}], GREEDY, use_tqdm=False)
    assert llm._engine.stats().prompt_tokens == before


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"),
     ({"stop": [""]}, "stop"), ({"max_tokens": 0}, "max_tokens"),
     ({"min_tokens": 20}, "min_tokens")],
)  # fmt: skip
def test_parameters_out_of_range_are_named_where_they_are_made(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}="):
        SamplingParams(**fields)


def test_an_interrupted_batch_leaves_the_engine_ready_for_the_next(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([None, None, KeyboardInterrupt()])
    step = llm._engine.step

    def interrupted() -> Any:
        if (error := next(steps)) is not None:
            raise error
        return step()

    monkeypatch.setattr(llm._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the fox"] * 20, GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert llm._engine.stats().num_used_blocks == 0
    assert len(llm.generate(["the fox"] * 3, GREEDY, use_tqdm=False)) == 3


def test_a_bar_shows_what_takes_long(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capsys.readouterr().err == "", "it was quick"
    monkeypatch.setattr("qwen_engine.llm._SECONDS_BEFORE_BAR", 0.0)
    llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().err
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_the_authors_recommendation_is_what_a_script_gets_that_says_nothing(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    assert len(llm.generate("a", use_tqdm=False)[0].outputs[0].token_ids) <= 16


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"max_modellen": 5}, "max_modellen"),
     ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
     ({"trust_remote_code": True}, "trust_remote_code")],
)  # fmt: skip
def test_settings_that_there_are_not_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        LLM("anything", **settings)


def test_the_import_is_light_and_no_server_comes_with_it() -> None:
    program = (
        "import sys, qwen_engine\n"
        "light = set(sys.modules)\n"
        "from qwen_engine import LLM, SamplingParams\n"
        "SamplingParams(temperature=0)\n"
        "print(sorted({'torch', 'transformers', 'qwen_engine.llm'} & light))\n"
        "print(sorted({'torch', 'transformers', 'aiohttp'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n[]\n"
