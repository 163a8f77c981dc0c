// One request, whose answer comes token by token. Its faults are said in words.
class Fault extends Error {}

// What an error has as its status, where it comes within an answer.
const statuses = { server_busy: 503, server_lost: 503, timeout: 504, server_error: 500 };

function words(status, kind, text, again) {
  if (kind === "server_lost")
    return `The device is lost. The server has to be started again. (${text})`;
  switch (status) {
    case 503:
      return `The server has enough to do. Try again in ${again || "a few"} s. (${text})`;
    case 504:
      return `The answer took longer than the server allows. (${text})`;
    case 413:
      return `The conversation is too long to be sent. (${text})`;
    default:
      return status >= 500 ? `The server could not answer. (${text})` : text;
  }
}

// Calls `token(text)` for each token; gives how it ended: "stop" or "length".
async function ask(messages, signal, token) {
  let response;
  try {
    response = await fetch("v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "content-type": "application/json", ...authorization() },
      body: JSON.stringify({ ...(model && { model }), messages, stream: true, ...settings() }),
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Fault("The server cannot be reached. Is it running?");
  }
  if (!response.ok) {
    const text = await response.text();
    let error = { message: text };
    try {
      error = JSON.parse(text).error;
    } catch {
      /* Something in between has answered. */
    }
    const again = response.headers.get("retry-after");
    throw new Fault(
      words(response.status, error.type, error.message || response.statusText, again),
    );
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let end = null;
  for (let rest = ""; ;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Fault("The connection was lost before the answer had ended.");
    }
    if (read.done) break;
    const events = (rest + read.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const piece = JSON.parse(event.slice(6));
      if (piece.error)
        throw new Fault(words(statuses[piece.error.type], piece.error.type, piece.error.message));
      const [choice] = piece.choices;
      if (!choice) continue;
      token(choice.delta.content ?? "");
      end = choice.finish_reason ?? end;
    }
  }
  if (!end) throw new Fault("The connection ended before the answer did.");
  return end;
}
