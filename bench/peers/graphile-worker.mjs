// graphile-worker: a job queue on PostgreSQL that is woken by LISTEN and NOTIFY.

import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import { atOnce, countdown, measure, perSecond, SUBMITTERS, TASKS, version, WAKES, WORKERS } from './measure.mjs';

process.env.PEER_VERSION = version('graphile-worker');
const connectionString = process.env.PEER_URL;
const logger = new Logger(() => (level, message) => level === 'error' && console.error(message));
const submitter = await makeWorkerUtils({ connectionString, logger, maxPoolSize: SUBMITTERS });
await submitter.migrate();

const started = (concurrency, taskList) => run({ connectionString, logger, concurrency, maxPoolSize: concurrency + 2, noHandleSignals: true, taskList });

await measure('throughput', 'tasks/s', `${TASKS} empty jobs, ${SUBMITTERS} adds at once, concurrency ${WORKERS}: from the first add to the last completion`, async () => {
  const ended = countdown(TASKS);
  const runner = await started(WORKERS, { empty: async () => {} });
  runner.events.on('job:complete', ended.hit);
  const began = performance.now();
  await atOnce(TASKS, SUBMITTERS, () => submitter.addJob('empty', {}));
  await ended.done;
  const rate = perSecond(TASKS, began);
  await runner.stop();
  return rate;
});

await measure('wake', 'ms', 'from the call of addJob to the start of the handler, one idle worker', async () => {
  let arrived = Promise.withResolvers();
  const runner = await started(1, { empty: async () => arrived.resolve(performance.now()) });
  const latencies = [];
  for (let wake = 0; wake < WAKES; wake++) {
    arrived = Promise.withResolvers();
    const completed = new Promise((done) => runner.events.once('job:complete', done));
    const began = performance.now();
    await submitter.addJob('empty', {});
    latencies.push((await arrived.promise) - began);
    await completed;
  }
  await runner.stop();
  return latencies;
});

process.exit(0);
