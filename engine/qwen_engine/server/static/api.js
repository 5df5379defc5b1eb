// Talks to the server. Every failure becomes an ApiError with a sentence for the user.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = sentence((await response.json()).error.message);
  } catch {
    // Not our server's form: a proxy in between, perhaps. The status has to do.
  }
  return new ApiError(message, response.status);
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Whether the model is loaded, and if not how far it is. */
export async function readiness() {
  try {
    const response = await fetch("ready", { cache: "no-store" });
    return await response.json();
  } catch {
    return { status: "unreachable", progress: 0 };
  }
}

export async function models(key) {
  return (await (await call("v1/models", { headers: headers(key) })).json()).data;
}

export async function stats() {
  return (await call("stats")).json();
}

/** Yield the events of a streamed chat completion. */
export async function* chat(body, { key, signal }) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(sentence(event.error.message), 500);
    yield event;
  }
  throw new ApiError("The connection ended before the answer did.", 0);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The connection broke before the answer was complete.", 0);
    }
    if (chunk.done) return;
    buffer += chunk.value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
