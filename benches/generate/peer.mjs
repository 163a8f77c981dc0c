// llama.cpp's turn, through node-llama-cpp: the same measurements as measure.rs, as one line of JSON.
// usage: node peer.mjs MODEL.gguf [speed|tokens|one] [threads]
import { readFileSync } from 'node:fs'
import { getLlama, LlamaLogLevel } from 'node-llama-cpp'

const [, , path, what = 'speed', threads = '2'] = process.argv
// Its runtime's own memory is not llama.cpp's.
const before = process.memoryUsage().rss
const llama = await getLlama({ gpu: false, build: 'never', logLevel: LlamaLogLevel.error })
const model = await llama.loadModel({ modelPath: path })
// Room for as many tokens as measure.rs has pages for, 4,096 or so.
const context = await model.createContext({ contextSize: 576, sequences: 8, threads: Number(threads), batchSize: 512 })
const lines = readFileSync(new URL('prompts.txt', import.meta.url), 'utf8').trimEnd().split('\n')
const prompts = lines.map((line) => model.tokenize(line))
const sequences = Array.from({ length: 8 }, () => context.getSequence())
const DECODED = 128

// When the first token came and when the last, in seconds, and all of them.
async function follow(sequence, prompt, count) {
  await sequence.clearHistory()
  const begin = performance.now(), all = []
  let first = 0
  for await (const token of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    if (all.length === 0) first = performance.now() - begin
    all.push(token)
    if (all.length === count) break
  }
  return [first / 1e3, (performance.now() - begin) / 1e3, all]
}

async function decode(count) {
  const done = await Promise.all(sequences.slice(0, count).map((s, k) => follow(s, prompts[k], DECODED)))
  const tokens = done.reduce((sum, d) => sum + d[2].length - 1, 0)
  return tokens / (Math.max(...done.map((d) => d[1])) - Math.max(...done.map((d) => d[0])))
}

if (what === 'tokens') {
  const all = []
  for (const prompt of prompts) {
    const [, , tokens] = await follow(sequences[0], prompt, 64)
    all.push({ prompt, tokens })
  }
  console.log(JSON.stringify(all))
} else if (what === 'one') {
  await decode(1)
  console.log(JSON.stringify({ 'decode 1': await decode(1) }))
} else {
  await decode(1)
  await decode(8)
  const long = (salt) => Array.from({ length: 512 }, (_, k) => 1000 + (k * 37 + salt * 101) % 20000)
  await follow(sequences[0], long(1), 1)
  const [prefill] = await follow(sequences[0], long(2), 1)
  const [first] = await follow(sequences[0], model.tokenize('The old lighthouse keeper'), 1)
  const one = await decode(1), eight = await decode(8)
  console.log(JSON.stringify({
    'decode 1': one, 'decode 8': eight, 'prefill 512': 512 / prefill, 'first token ms': first * 1e3,
    'resident MiB': (process.memoryUsage().rss - before) / 2 ** 20,
  }))
}
process.exit(0)
