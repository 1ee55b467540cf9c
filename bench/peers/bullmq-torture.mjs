// BullMQ under the faults that apply to it: a submitter that insists, four worker processes, and a nemesis that kills and
// stops workers and kills Valkey. Settings are as near to ours as BullMQ has them: AOF with fsync for every write, a lock of
// four seconds like our leases, a look for stalled jobs every second, and as many stalls and attempts as our policy allows.

import { fork, spawn } from 'node:child_process';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue, Worker } from 'bullmq';
import Redis from 'ioredis';

const NAME = 'torture';
const LOCK_MS = 4_000;
const port = Number(process.env.PEER_PORT);
const data = process.env.PEER_DATA;
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null, retryStrategy: () => 50 };

if (process.argv[2] === 'worker') {
  const log = `${data}/worker-${process.pid}.jsonl`;
  const say = (what, job) => appendFileSync(log, `${JSON.stringify({ what, id: job.id, at: Date.now() })}\n`);
  const worker = new Worker(NAME, async (job) => {
    say('began', job);
    await sleep(Math.random() * 40);
    if (Math.random() < 0.2) throw new Error('on purpose');
    say('effect', job);
    return job.id;
  }, { connection, concurrency: 3, lockDuration: LOCK_MS, stalledInterval: 1_000, maxStalledCount: 1_000 });
  worker.on('completed', (job) => say('completed', job));
  worker.on('error', () => {});
  process.on('disconnect', () => process.exit(0));
} else {
  await campaign();
}

function startValkey() {
  const settings = ['--bind', '127.0.0.1', '--port', String(port), '--save', '', '--appendonly', 'yes', '--appendfsync', 'always'];
  return spawn('valkey-server', [...settings, '--maxmemory-policy', 'noeviction', '--dir', data], { stdio: 'ignore' });
}

async function ready() {
  const client = new Redis({ port, lazyConnect: true, maxRetriesPerRequest: null, retryStrategy: () => 50 });
  client.on('error', () => {});
  await client.connect().catch(() => {});
  await client.ping();
  client.disconnect();
}

function median(times) {
  return [...times].sort((a, b) => a - b)[Math.floor((times.length - 1) / 2)] ?? null;
}

async function campaign() {
  const seconds = Number(process.env.PEER_SECONDS ?? 60);
  let valkey = startValkey();
  await ready();
  const queue = new Queue(NAME, { connection });
  queue.on('error', () => {});
  const workers = Array.from({ length: 4 }, () => fork(process.argv[1], ['worker'], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }));
  const logs = workers.map((worker) => worker.pid);

  const acknowledged = [];
  let submitting = true;
  let calls = 0;
  const submitter = async (number) => {
    for (let turn = 0; submitting; turn += 1) {
      const jobId = `j${number}-${turn}`;
      for (;;) {
        calls += 1;
        try {
          await Promise.race([
            queue.add('job', {}, { jobId, attempts: 21, backoff: { type: 'fixed', delay: 50 }, removeOnComplete: false, removeOnFail: false }),
            sleep(10_000).then(() => { throw new Error('no answer'); }),
          ]);
          acknowledged.push(jobId);
          break;
        } catch {
          await sleep(50);
        }
      }
      await sleep(40);
    }
  };
  const submitters = [0, 1, 2].map(submitter);

  const faults = {
    'worker-kill': async (turn) => {
      const place = turn % workers.length;
      workers[place].kill('SIGKILL');
      await sleep(1_000);
      workers[place] = fork(process.argv[1], ['worker'], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
      logs.push(workers[place].pid);
    },
    'worker-stop': async (turn) => {
      const place = (turn + 1) % workers.length;
      workers[place].kill('SIGSTOP');
      await sleep(LOCK_MS + 1_500);
      workers[place].kill('SIGCONT');
    },
    'store-kill': async () => {
      valkey.kill('SIGKILL');
      await sleep(3_000);
      valkey = startValkey();
      await ready();
    },
  };
  const healed = [];
  const end = Date.now() + seconds * 1_000;
  for (let turn = 0; Date.now() < end; turn += 1) {
    await sleep(3_000);
    const name = Object.keys(faults)[turn % 3];
    await faults[name](Math.floor(turn / 3));
    healed.push({ name, at: Date.now() });
  }
  submitting = false;
  await Promise.all(submitters);

  // All work ends, or nothing has ended for a minute.
  let [left, since] = [Infinity, Date.now()];
  while (left > 0 && Date.now() - since < 60_000) {
    await sleep(500);
    const counts = await queue.getJobCounts('waiting', 'active', 'delayed', 'prioritized', 'waiting-children');
    const open = Object.values(counts).reduce((sum, count) => sum + count, 0);
    if (open < left) [left, since] = [open, Date.now()];
  }
  const lines = logs.map((pid) => `${data}/worker-${pid}.jsonl`).filter(existsSync).flatMap((file) => readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line)));
  const count = (what) => lines.filter((line) => line.what === what).reduce((map, line) => map.set(line.id, (map.get(line.id) ?? 0) + 1), new Map());
  const twice = (map) => [...map.values()].filter((times) => times > 1).length;
  const [completed, effects] = [count('completed'), count('effect')];
  let [lost, unfinished] = [0, 0];
  for (const id of acknowledged) {
    const job = await queue.getJob(id);
    if (!job) lost += 1;
    else if (await job.getState() !== 'completed') unfinished += 1;
  }
  const ends = lines.filter((line) => line.what === 'completed').map((line) => line.at).sort((a, b) => a - b);
  const recovery = {};
  for (const { name, at } of healed) {
    const next = ends.find((end) => end >= at);
    if (next !== undefined) (recovery[name] ??= []).push(next - at);
  }
  const version = createRequire(import.meta.url)('bullmq/package.json').version;
  console.log(JSON.stringify({
    system: 'BullMQ', version, scenario: 'torture', store: 'Valkey, appendfsync always', seconds, calls,
    settings: { lockDuration: LOCK_MS, stalledInterval: 1_000, maxStalledCount: 1_000, attempts: 21 },
    acknowledged: acknowledged.length, lost, unfinished, left,
    completions_accepted_twice: twice(completed), effects_twice: twice(effects),
    faults: Object.fromEntries(Object.entries(recovery).map(([name, times]) => [name, { strikes: times.length, back_p50_ms: median(times), back_max_ms: Math.max(...times) }])),
  }));
  workers.forEach((worker) => worker.kill('SIGKILL'));
  valkey.kill('SIGKILL');
  process.exit(0);
}
