"""One prompt on its way from a route to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qwen_engine.generation import Deadline
from qwen_engine.sequence import DEFAULT_SCHEDULING, SchedulingParams
from qwen_engine.server.protocol.sampling import Sampling
from qwen_engine.structured import Grammar, Thinking
from qwen_engine.vision.prompt import MediaPrompt


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt, ready for the engine."""

    request_id: str
    prompt: Sequence[int]
    sampling: Sampling
    param: str  # the request's field that the prompt came from
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    # Whether the answer begins inside the thinking; None: none is to be taken out of it.
    is_thinking: bool | None = None
    grammar: Grammar | None = None
    thinking: Thinking = Thinking.CLOSED  # where the grammar finds the answer at its start
    deadline: Deadline | None = None
    media: MediaPrompt | None = None

    def choices(self) -> list[Ask]:
        """Return what the engine is asked: one of these for each choice.

        They share the prompt's blocks, unless it is to be scored: that takes all its logits.
        """
        number = self.sampling.num_choices
        if number == 1:
            return [self]
        names = [f"{self.request_id}-{index}" for index in range(number)]
        is_scored = self.sampling.prompt_logprobs is not None
        fork = replace(self.scheduling, fork_of=None if is_scored else names[0])
        return [
            replace(
                self,
                request_id=name,
                sampling=self.sampling.for_choice(index),
                scheduling=fork if index else self.scheduling,
            )
            for index, name in enumerate(names)
        ]
