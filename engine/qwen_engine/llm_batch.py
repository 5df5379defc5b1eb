"""Runs a batch of prompts to their ends: `LLM` without what users see of it.

Owns the loop and what is known of each answer while it is written. Called by `llm`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qwen_engine.answer_text import AnswerText
from qwen_engine.launch import Launched
from qwen_engine.llm_outputs import CompletionOutput, Logprobs, RequestOutput, logprobs_by_id
from qwen_engine.llm_params import SamplingParams
from qwen_engine.sequence import DEFAULT_SCHEDULING, SchedulingParams, TokenLogprobs
from qwen_engine.structured import Grammar, Thinking
from qwen_engine.vision.prompt import MediaPrompt

if TYPE_CHECKING:
    from qwen_engine.llm_engine import StepOutput


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt, ready for the engine."""

    prompt: str | None
    token_ids: list[int]
    params: SamplingParams
    thinking: Thinking = Thinking.CLOSED
    media: MediaPrompt | None = None


@dataclass(slots=True)
class _Choice:
    """One answer that is being written."""

    request_id: str
    index: int
    job: _Job
    text: AnswerText
    words: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, output: StepOutput) -> None:
        piece = self.text.take(output)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.words += piece.text if piece else ""
        if self.index == 0:
            self.job.num_cached_tokens = output.num_cached_tokens
            self.job.prompt_logprobs += output.prompt_logprobs


@dataclass(slots=True)
class _Job:
    """One prompt with its choices."""

    ask: Ask
    choices: list[_Choice] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0

    @property
    def is_done(self) -> bool:
        return all(choice.text.is_over for choice in self.choices)


class BatchRunner:
    """Belongs to one thread at a time."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._engine = launched.engine
        self._tokenizer = launched.tokenizer
        self._num_requests = 0
        own = launched.tokenizer.eos_token_id
        self._extra_eos = frozenset(() if own is None else (own,))

    def run(self, asks: Sequence[Ask], advance: Callable[[int], object]) -> list[RequestOutput]:
        """Answer all; call `advance` with 1 for each prompt that is done."""
        jobs = self._jobs(asks)
        self._write(jobs, advance)
        return [self._output(job) for job in jobs]

    def _jobs(self, asks: Sequence[Ask]) -> list[_Job]:
        jobs = []
        for ask in asks:
            job = _Job(ask)
            for index in range(ask.params.n):
                detokenizer = self._tokenizer.detokenizer(
                    ask.token_ids, skip_special_tokens=ask.params.skip_special_tokens
                )
                text = AnswerText(detokenizer, ask.params.text_rules())
                job.choices.append(_Choice(f"{self._num_requests}-{index}", index, job, text))
            self._num_requests += 1
            jobs.append(job)
        return jobs

    def _write(self, jobs: Sequence[_Job], advance: Callable[[int], object]) -> None:
        """Run the engine until all is written. What is cut short leaves nothing in the pool."""
        waiting = deque(choice for job in jobs for choice in job.choices)
        grammars = self._compile(jobs)
        live: dict[str, _Choice] = {}
        # Enough to fill every step; a queue of all prompts would cost the scheduler time.
        most = 2 * self._launched.config.max_num_seqs
        try:
            while waiting or live:
                while waiting and len(live) < most:
                    choice = waiting.popleft()
                    self._add(choice, grammars.get(id(choice.job.ask.params)))
                    live[choice.request_id] = choice
                for output in self._engine.step():
                    choice = live[output.request_id]
                    choice.take(output)
                    if choice.text.is_over:
                        self._engine.abort(live.pop(output.request_id).request_id)
                        advance(int(choice.job.is_done))
        except BaseException:  # also where the user interrupts a notebook's cell
            self._engine.reset_after_failure()
            for request_id in live:
                self._engine.abort(request_id)
            raise

    def _compile(self, jobs: Sequence[_Job]) -> dict[int, Grammar]:
        """Return the grammars that are asked for, by the identity of the parameters."""
        found: dict[int, Grammar] = {}
        for job in jobs:
            wanted = job.ask.params.structured_outputs
            form = wanted.form() if wanted is not None else None
            if form is not None and id(job.ask.params) not in found:
                found[id(job.ask.params)] = self._launched.compiler.compile(form)
        return found

    def _add(self, choice: _Choice, grammar: Grammar | None) -> None:
        ask = choice.job.ask
        scheduling = DEFAULT_SCHEDULING
        if choice.index and ask.params.prompt_logprobs is None:
            scheduling = SchedulingParams(fork_of=choice.job.choices[0].request_id)
        room = self._engine.max_request_tokens - len(ask.token_ids)
        params = ask.params.engine_params(
            max_tokens=room if ask.params.max_tokens is None else ask.params.max_tokens,
            choice=choice.index,
            extra_eos=self._extra_eos,
            constraint=grammar.constrain(ask.thinking) if grammar else None,
        )
        self._engine.add_request(
            choice.request_id, ask.token_ids, params, scheduling, media=ask.media
        )

    def _output(self, job: _Job) -> RequestOutput:
        ask = job.ask
        scores = None
        if ask.params.prompt_logprobs is not None:
            scores = [None, *self._logprobs(job.prompt_logprobs, ask.params.prompt_logprobs)]
        return RequestOutput(
            request_id=job.choices[0].request_id.partition("-")[0],
            prompt=ask.prompt,
            prompt_token_ids=ask.token_ids,
            prompt_logprobs=scores,
            outputs=[self._completion(choice) for choice in job.choices],
            num_cached_tokens=job.num_cached_tokens,
        )

    def _completion(self, choice: _Choice) -> CompletionOutput:
        num_tops = choice.job.ask.params.logprobs
        has_logprobs = num_tops is not None
        return CompletionOutput(
            index=choice.index,
            text=choice.words,
            token_ids=choice.token_ids,
            cumulative_logprob=(
                sum(entry.logprob for entry in choice.logprobs) if has_logprobs else None
            ),
            logprobs=self._logprobs(choice.logprobs, num_tops) if num_tops is not None else None,
            finish_reason=choice.text.finish_reason,
            stop_reason=choice.text.stop_reason,
        )

    def _logprobs(self, entries: Sequence[TokenLogprobs], num_tops: int) -> Logprobs:
        def decode(token_id: int) -> str:
            return self._tokenizer.token_bytes(token_id).decode(errors="replace")

        return logprobs_by_id(entries, num_tops=num_tops, decode=decode)
