// The npm package `openai` in its simplest form: clients.mjs URL.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.FUTENSOR_NODE_MODULES + "/");
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Hello" }];
const ask = more =>
  client.chat.completions.create({ model, messages, max_tokens: 12, seed: 5, ...more });

const whole = await ask({});
const said = whole.choices[0].message;
let streamed = "";
for await (const piece of await ask({ stream: true }))
  streamed += piece.choices[0]?.delta.content ?? "";
const second = await ask({ messages: [...messages, said, ...messages], store: true });
const refused = await ask({ model: "no" }).then(
  () => null,
  error => error,
);
const wrong = Object.entries({
  "a text": typeof said.content === "string",
  "streamed alike": streamed === said.content,
  "its own answer back": typeof second.choices[0].message.content === "string",
  "an error's code": refused?.status === 404 && refused.code === "model_not_found",
  "a request's name": whole._request_id?.startsWith("req-"),
}).filter(([, holds]) => !holds);
wrong.forEach(([name]) => console.log(name));
process.exit(wrong.length > 0 ? 1 : 0);
