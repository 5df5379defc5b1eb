"""What the memorised model knows: each prompt with the one answer that tests then expect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER_TOOL, TIME_TOOL]
NO_THINKING = {"enable_thinking": False}


@dataclass(frozen=True, slots=True)
class Dialogue:
    messages: list[dict[str, Any]]
    answer: str  # as the model writes it, without the end token
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def thinks(thinking: str, answer: str) -> str:
    return f"<think>\n{thinking}\n</think>\n\n{answer}"


def calls(*written: str) -> str:
    """Return calls as Qwen3 writes them: one object in each block."""
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


FRANCE, FRANCE_THINKING = "The capital of France is Paris.", "A capital.\n\nIs 9.8 larger? No."
CHINESE, CHINESE_THINKING = "法国的首都是巴黎。🗼", "用户问法国的首都。"
EMOJI = "👍🏽 👨‍👩‍👧‍👦 🇩🇪 🦄 ñ"
CODE = 'Here:\n\n```python\nif a < b and c > d:\n    print("</b>")\n```\n'
PARIS_ARGUMENTS = '{"city": "Paris", "days": 3}'
PARIS_CALL = f'{{"name": "get_weather", "arguments": {PARIS_ARGUMENTS}}}'
TOKYO_ARGUMENTS = '{"city": "東京 \\"都\\" 🗼"}'
TWO_CALLS = (
    f'{{"name": "get_weather", "arguments": {TOKYO_ARGUMENTS}}}',
    '{"name": "get_time", "arguments": {}}',
)
BROKEN_CALL = 'So:\n<tool_call>\n{"name": get\n</tool_call> Done.'
PERSON = '{"name": "Zoë", "age": 42}'

_ASKED = user("Weather in Paris?")
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}},
        }
    ],
}
_TOLD = {"role": "tool", "content": "21 degrees"}

DIALOGUES = [
    Dialogue(user("Capital of France?"), thinks(FRANCE_THINKING, FRANCE)),
    Dialogue(user("Capital of France?"), "Paris.", variables=NO_THINKING),
    Dialogue(user("法国的首都?"), thinks(CHINESE_THINKING, CHINESE)),
    Dialogue(user("Emoji?"), EMOJI, variables=NO_THINKING),
    Dialogue(user("Emoji?"), thinks(EMOJI, EMOJI)),
    Dialogue(user("Code?"), CODE, variables=NO_THINKING),
    Dialogue(user("ABC"), "DEFGHIJKLMNOP", variables=NO_THINKING),
    Dialogue(user("Which character?"), "It is \ufffd.", variables=NO_THINKING),
    Dialogue(user("Think twice"), thinks("Once.", "Then <think> is a tag, </think> its end.")),
    Dialogue(user("How is a call written?"), "With <tool_call> first.", variables=NO_THINKING),
    Dialogue(user("A person, please"), PERSON, variables=NO_THINKING),
    Dialogue(user("A person, please"), thinks('Say {"a": 1}? No.', PERSON)),
    Dialogue(_ASKED, thinks("I need a tool.", calls(PARIS_CALL)), TOOLS),
    Dialogue(_ASKED, calls(PARIS_CALL), TOOLS, NO_THINKING),
    Dialogue(user("Two things"), "I will ask.\n" + calls(*TWO_CALLS), TOOLS, NO_THINKING),
    Dialogue([*_ASKED, _CALLED, _TOLD], "It is 21 degrees.", TOOLS, NO_THINKING),
    Dialogue(user("Hello"), "Hello! 1 < 2 <tool", TOOLS, NO_THINKING),
    Dialogue(user("Break a call"), BROKEN_CALL, TOOLS, NO_THINKING),
]
