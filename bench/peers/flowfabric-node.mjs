// Our TypeScript SDK: one process submits and works.

import { Client, task, Worker } from '@flowfabric/sdk';
import { atOnce, CHAIN_LENGTH, CHAINS, CHAINS_AT_ONCE, countdown, IDLE_SECONDS, idleCommands, measure, perSecond, SUBMITTERS, TASKS, version, WAKES, WORKERS } from './measure.mjs';

process.env.PEER_VERSION = version('@flowfabric/sdk');
const client = new Client();

/** Runs a scenario beside a worker. The scenario is told of every task that starts. */
async function withWorker(concurrency, scenario) {
  let hear = () => {};
  const empty = task('empty', (ctx) => hear(ctx.executionId));
  const link = task('link', () => null);
  const worker = new Worker(client, { tasks: [empty, link], concurrency, prefetch: concurrency });
  const running = worker.run();
  // The worker and every connection are warm when the window begins.
  const warm = countdown(WORKERS * 4);
  hear = warm.hit;
  await atOnce(WORKERS * 4, SUBMITTERS, () => client.submit(empty, null));
  await warm.done;
  try {
    return await scenario(empty, (listener) => { hear = listener; });
  } finally {
    worker.stop();
    await running;
  }
}

await measure('throughput', 'tasks/s', `${TASKS} empty tasks, ${SUBMITTERS} submits at once, one worker with concurrency ${WORKERS}, which takes as many ahead, in the same process: from the first submit to the last completion`, () =>
  withWorker(WORKERS, async (empty, listen) => {
    const started = [];
    const all = countdown(TASKS);
    listen((id) => { started.push(id); all.hit(); });
    const began = performance.now();
    await atOnce(TASKS, SUBMITTERS, () => client.submit(empty, null));
    await all.done;
    // Those that were started last are the only ones that may not have ended.
    await Promise.all(started.slice(-2 * WORKERS).map((id) => client.execution(id).wait()));
    return perSecond(TASKS, began);
  }));

await measure('wake', 'ms', 'from the call of submit to the start of the function, one idle worker', () =>
  withWorker(1, async (empty, listen) => {
    const latencies = [];
    for (let wake = 0; wake < WAKES; wake++) {
      const arrived = Promise.withResolvers();
      listen(() => arrived.resolve(performance.now()));
      const began = performance.now();
      const execution = await client.submit(empty, null);
      latencies.push((await arrived.promise) - began);
      await execution.wait();
    }
    return latencies;
  }));

async function chains(count, limit) {
  const latencies = [];
  const began = performance.now();
  await atOnce(count, limit, async () => {
    const from = performance.now();
    const graph = client.flow();
    for (let place = 0; place < CHAIN_LENGTH; place++) graph.node(String(place), 'link', null, place === 0 ? {} : { after: [String(place - 1)] });
    const flow = await graph.create();
    await client.execution(flow.executions[String(CHAIN_LENGTH - 1)]).wait();
    latencies.push(performance.now() - from);
  });
  return { latencies, rate: perSecond(count, began) };
}

const covers = `a flow of ${CHAIN_LENGTH} executions, from its creation to the end of the last`;
await measure('chain', 'ms', `${covers}; one at a time`, () => withWorker(WORKERS, async () => (await chains(CHAINS, 1)).latencies));
await measure('chains', 'flows/s', `${covers}; ${CHAINS_AT_ONCE} at once`, () => withWorker(WORKERS, async () => (await chains(CHAINS_AT_ONCE, CHAINS_AT_ONCE)).rate));
await measure('idle', 'commands/s', `one worker with concurrency ${WORKERS} and a server, idle for ${IDLE_SECONDS} s, every command the store counts`, () => withWorker(WORKERS, idleCommands));

process.exit(0);
