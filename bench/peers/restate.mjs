// Restate: a durable execution engine. Its server calls handlers in this process over HTTP/2 and journals what they do.

import * as http2 from 'node:http2';
import * as restate from '@restatedev/restate-sdk';
import * as clients from '@restatedev/restate-sdk-clients';
import { atOnce, CHAIN_LENGTH, CHAINS, CHAINS_AT_ONCE, countdown, measure, perSecond, SUBMITTERS, TASKS, version, WAKES, WORKERS } from './measure.mjs';

process.env.PEER_VERSION = version('@restatedev/restate-server');

let arrived = () => {};
let suspended = Promise.withResolvers();
let resumed = Promise.withResolvers();
const bench = restate.service({
  name: 'bench',
  handlers: {
    empty: async () => arrived(),
    chain: async (context) => {
      for (let step = 0; step < CHAIN_LENGTH; step++) await context.run(`step-${step}`, () => step);
    },
    suspend: async (context) => {
      const { id, promise } = context.awakeable();
      suspended.resolve(id);
      await promise;
      resumed.resolve(performance.now());
    },
  },
});

const logger = ({ level }, ...message) => level === 'error' && console.error(...message);
const endpoint = http2.createServer(restate.createEndpointHandler({ services: [bench], logger }));
await new Promise((listening) => endpoint.listen(0, '127.0.0.1', listening));
const registered = await fetch(`http://127.0.0.1:${process.env.PEER_ADMIN}/deployments`, {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ uri: `http://127.0.0.1:${endpoint.address().port}` }),
});
if (!registered.ok) throw new Error(`the server refused the service: ${await registered.text()}`);

const ingress = clients.connect({ url: `http://127.0.0.1:${process.env.PEER_INGRESS}` });
const call = ingress.serviceClient({ name: 'bench' });
const send = ingress.serviceSendClient({ name: 'bench' });

for (const callers of [WORKERS, SUBMITTERS]) {
  const note = `${TASKS} calls of an empty handler, ${callers} callers that each wait for the answer`;
  await measure('throughput', 'tasks/s', note, async () => {
    const began = performance.now();
    await atOnce(TASKS, callers, () => call.empty());
    return perSecond(TASKS, began);
  }, { variant: `${callers} callers` });
}

await measure('throughput', 'tasks/s', `${TASKS} one-way messages, ${SUBMITTERS} sends at once: from the first send to the start of the last handler`, async () => {
  const ended = countdown(TASKS);
  arrived = () => void ended.hit();
  const began = performance.now();
  await atOnce(TASKS, SUBMITTERS, () => send.empty());
  await ended.done;
  return perSecond(TASKS, began);
}, { variant: 'one-way' });

await measure('wake', 'ms', 'from a one-way send to the start of the handler, nothing else to do', async () => {
  const latencies = [];
  for (let wake = 0; wake < WAKES; wake++) {
    const started = Promise.withResolvers();
    arrived = () => void started.resolve(performance.now());
    const began = performance.now();
    await send.empty();
    latencies.push((await started.promise) - began);
  }
  arrived = () => {};
  return latencies;
});

const covers = `one handler with ${CHAIN_LENGTH} journaled steps, from the call to its answer`;
await measure('chain', 'ms', `${covers}; one at a time`, async () => {
  const latencies = [];
  for (let number = 0; number < CHAINS; number++) {
    const began = performance.now();
    await call.chain();
    latencies.push(performance.now() - began);
  }
  return latencies;
});
await measure('chains', 'flows/s', `${covers}; ${CHAINS_AT_ONCE} at once`, async () => {
  const began = performance.now();
  await atOnce(CHAINS_AT_ONCE, CHAINS_AT_ONCE, () => call.chain());
  return perSecond(CHAINS_AT_ONCE, began);
});

await measure('suspend-resume', 'ms', 'from resolving an awakeable over HTTP to the handler behind it; the handler waits for less than a minute, so its connection stays open', async () => {
  const latencies = [];
  for (let number = 0; number < WAKES; number++) {
    [suspended, resumed] = [Promise.withResolvers(), Promise.withResolvers()];
    await send.suspend();
    const id = await suspended.promise;
    const began = performance.now();
    await ingress.resolveAwakeable(id, '');
    latencies.push((await resumed.promise) - began);
  }
  return latencies;
});

process.exit(0);
