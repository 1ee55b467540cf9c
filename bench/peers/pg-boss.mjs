// pg-boss: a job queue on PostgreSQL. Its own workers ask every two seconds, so 16 loops fetch and complete instead, which
// is the fastest it offers one job at a time. There is no wake-up to measure for the same reason.

import * as module from 'pg-boss';
import { atOnce, measure, perSecond, SUBMITTERS, TASKS, version, WORKERS } from './measure.mjs';

process.env.PEER_VERSION = version('pg-boss');
const PgBoss = module.PgBoss ?? module.default;
const boss = new PgBoss({ connectionString: process.env.PEER_URL, max: SUBMITTERS });
boss.on('error', (why) => console.error(why));
await boss.start();

await measure('throughput', 'tasks/s', `${TASKS} empty jobs, ${SUBMITTERS} sends at once, ${WORKERS} loops of fetch and complete: from the first send to the last completion`, async (repetition) => {
  const queue = `throughput-${repetition}`;
  await boss.createQueue(queue);
  let left = TASKS;
  const drain = async () => {
    while (left > 0) {
      const [job] = await boss.fetch(queue);
      if (!job) continue;
      await boss.complete(queue, job.id);
      left--;
    }
  };
  const began = performance.now();
  await Promise.all([atOnce(TASKS, SUBMITTERS, () => boss.send(queue, {})), ...Array.from({ length: WORKERS }, drain)]);
  return perSecond(TASKS, began);
});

process.exit(0);
