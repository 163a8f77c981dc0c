// The npm packages `openai`, and `ai` with `@ai-sdk/openai-compatible`, in their simplest form:
// clients.mjs URL.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.FUTENSOR_NODE_MODULES + "/");
const load = name => import(pathToFileURL(require.resolve(name)).href);
const { default: OpenAI } = await load("openai");
const { generateText, streamText } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
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
const baseURL = process.argv[2] + "/v1";
const sdk = createOpenAICompatible({ name: "futensor", baseURL, apiKey: "none" })(model);
const prompt = { model: sdk, prompt: "Hello", maxOutputTokens: 12, seed: 5, maxRetries: 0 };
const generated = await generateText(prompt);
let pieces = "";
for await (const piece of streamText(prompt).textStream) pieces += piece;
const wrong = Object.entries({
  "a text": typeof said.content === "string",
  "streamed alike": streamed === said.content,
  "its own answer back": typeof second.choices[0].message.content === "string",
  "an error's code": refused?.status === 404 && refused.code === "model_not_found",
  "the AI SDK": typeof generated.text === "string" && generated.usage.outputTokens > 0,
  "the AI SDK's stream": pieces === generated.text,
  "a request's name": whole._request_id?.startsWith("req-"),
}).filter(([, holds]) => !holds);
wrong.forEach(([name]) => console.log(name));
process.exit(wrong.length > 0 ? 1 : 0);
