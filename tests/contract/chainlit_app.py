"""The streaming example of Chainlit's documentation, as its users write it for OpenAI.

Run by Chainlit, in an environment of its own (`tests/setup/chainlit.py`); `test_chainlit.py` opens
it. Whom it asks comes from OPENAI_BASE_URL and OPENAI_API_KEY. After
docs.chainlit.io/advanced-features/streaming.
"""

import chainlit as cl
from openai import AsyncOpenAI

client = AsyncOpenAI()
settings = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": 500,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}


@cl.on_chat_start
def start() -> None:
    cl.user_session.set("history", [])


@cl.on_message
async def answer(message: cl.Message) -> None:
    history = cl.user_session.get("history")
    history.append({"role": "user", "content": message.content})
    shown = cl.Message(content="")
    stream = await client.chat.completions.create(messages=history, stream=True, **settings)
    async for part in stream:
        if text := part.choices[0].delta.content:
            await shown.stream_token(text)
    history.append({"role": "assistant", "content": shown.content})
    await shown.update()
