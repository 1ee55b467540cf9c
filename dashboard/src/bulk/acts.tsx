// The acts of an operator on a bulk job.

import { answer, api } from "../api/client";
import { go, link } from "../router";
import { may } from "../session";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";
import { ACTIONS } from "./words";
import type { Job } from "./words";

function stopOf(job: Job): Act {
  return {
    name: "Stop",
    effect: "Nothing more is changed. What was done stays done.",
    command: `ff bulk stop ${job.bulk_id}`,
    danger: true,
    run: async () => {
      const stopped = await answer(api.POST("/v1/bulk/{bulk_id}/cancel", { params: { path: { bulk_id: job.bulk_id } }, body: {} }));
      return `The job is ${stopped.state}.`;
    },
  };
}

/** The job that a dry run was about. */
function carryOutOf(job: Job): Act {
  const { name, past, danger } = ACTIONS[job.action];
  return {
    name: "Carry out",
    effect: `${name}: what the filter of this dry run matches by now will be ${past}, as a job of its own.`,
    danger: danger ?? false,
    run: async () => {
      const { namespace, filter, action, reason, priority, tags, max, rate_per_second: rate } = job;
      const body = { namespace, filter, action, reason, priority, tags, max, rate_per_second: rate };
      const begun = await answer(api.POST("/v1/bulk", { body: body as never }));
      go(link(["bulk", begun.bulk_id]));
      return "The job has begun.";
    },
  };
}

/** The acts that make sense in the state that the job is in. */
export function JobActs({ job, done }: { job: Job; done: () => void }) {
  if (!may("operator")) return null;
  const acts = job.ended_at ? (job.dry_run && job.progress.done > 0 ? [carryOutOf(job)] : []) : [stopOf(job)];
  return acts.length > 0 ? <ActButtons label={`Actions on ${job.bulk_id}`} acts={acts} done={done} /> : null;
}
