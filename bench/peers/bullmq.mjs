// BullMQ: a job queue on Valkey. Finishing a job and fetching the next is one script.

import { FlowProducer, Queue, Worker } from 'bullmq';
import { atOnce, CHAIN_LENGTH, CHAINS, CHAINS_AT_ONCE, countdown, IDLE_SECONDS, idleCommands, measure, perSecond, SUBMITTERS, TASKS, version, WAKES, WORKERS } from './measure.mjs';

process.env.PEER_VERSION = version('bullmq');
const connection = { host: '127.0.0.1', port: Number(process.env.PEER_PORT) };

async function started(name, concurrency, handler, on = connection) {
  const made = new Worker(name, handler, { connection: on, concurrency });
  made.on('error', (why) => console.error(why));
  await made.waitUntilReady();
  return made;
}

async function throughput(name, on, data) {
  const queue = new Queue(name, { connection: on });
  const ended = countdown(TASKS);
  const working = await started(queue.name, WORKERS, async () => {}, on);
  working.on('completed', ended.hit);
  const began = performance.now();
  await atOnce(TASKS, SUBMITTERS, () => queue.add('empty', data));
  await ended.done;
  const rate = perSecond(TASKS, began);
  await Promise.all([working.close(), queue.close()]);
  return rate;
}

const window = `${SUBMITTERS} adds at once, one worker with concurrency ${WORKERS}: from the first add to the last completion`;
await measure('throughput', 'tasks/s', `${TASKS} empty jobs, ${window}`, (repetition) => throughput(`throughput-${repetition}`, connection, {}));
for (const [scenario, bytes] of [['throughput-10k', 10_240], ['throughput-100k', 102_400]]) {
  const data = { text: 'i'.repeat(bytes - '{"text":""}'.length) };
  await measure(scenario, 'tasks/s', `${TASKS} jobs with ${bytes} bytes of data, ${window}`, (repetition) => throughput(`${scenario}-${repetition}`, connection, data));
}
const everysec = { ...connection, port: Number(process.env.PEER_EVERYSEC_PORT) };
const replicated = { ...connection, port: Number(process.env.PEER_REPLICATED_PORT) };
await measure('throughput-everysec', 'tasks/s', `${TASKS} empty jobs, ${window}`, (repetition) => throughput(`everysec-${repetition}`, everysec, {}), { durability: 'append-only file, synced every second' });
await measure('throughput-replicated', 'tasks/s', `${TASKS} empty jobs, ${window}`, (repetition) => throughput(`replicated-${repetition}`, replicated, {}), { durability: 'a replica follows and is not waited for' });

await measure('wake', 'ms', 'from the call of add to the start of the handler, one idle worker', async (repetition) => {
  const queue = new Queue(`wake-${repetition}`, { connection });
  let arrived = Promise.withResolvers();
  const working = await started(queue.name, 1, async () => arrived.resolve(performance.now()));
  const latencies = [];
  for (let wake = 0; wake < WAKES; wake++) {
    arrived = Promise.withResolvers();
    const completed = new Promise((done) => working.once('completed', done));
    const began = performance.now();
    await queue.add('empty', {});
    latencies.push((await arrived.promise) - began);
    await completed;
  }
  await Promise.all([working.close(), queue.close()]);
  return latencies;
});

// The parent of a flow waits for its children, so the last of a chain is the outermost.
const chain = (queueName, left = CHAIN_LENGTH) => ({ name: 'empty', queueName, data: {}, children: left > 1 ? [chain(queueName, left - 1)] : [] });

async function chains(count, limit, name) {
  const flows = new FlowProducer({ connection });
  const ends = new Map();
  const working = await started(name, WORKERS, async () => {});
  working.on('completed', (job) => ends.get(job.id)?.resolve());
  const latencies = [];
  const began = performance.now();
  await atOnce(count, limit, async (number) => {
    const from = performance.now();
    const graph = { ...chain(name), opts: { jobId: `last-${number}` } };
    ends.set(graph.opts.jobId, Promise.withResolvers());
    await flows.add(graph);
    await ends.get(graph.opts.jobId).promise;
    latencies.push(performance.now() - from);
  });
  const rate = perSecond(count, began);
  await Promise.all([working.close(), flows.close()]);
  return { latencies, rate };
}

const covers = `a flow of ${CHAIN_LENGTH} jobs, each its parent's only child, from the add to the completion of the last`;
await measure('chain', 'ms', `${covers}; one at a time`, async (repetition) => (await chains(CHAINS, 1, `chain-${repetition}`)).latencies);
await measure('chains', 'flows/s', `${covers}; ${CHAINS_AT_ONCE} at once`, async (repetition) => (await chains(CHAINS_AT_ONCE, CHAINS_AT_ONCE, `chains-${repetition}`)).rate);

await measure('idle', 'commands/s', `${WORKERS} idle workers for ${IDLE_SECONDS} s, every command the server counts`, async (repetition) => {
  const all = await Promise.all(Array.from({ length: WORKERS }, () => started(`idle-${repetition}`, 1, async () => {})));
  const rate = await idleCommands();
  await Promise.all(all.map((working) => working.close()));
  return rate;
});

process.exit(0);
