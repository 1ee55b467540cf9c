// Bulk jobs: one change, made to everything that a filter matches.

import { answer, api } from "../api/client";
import { JobActs } from "../bulk/acts";
import { filterWords, titleOf } from "../bulk/words";
import type { Job } from "../bulk/words";
import { count, many } from "../format";
import { useRows } from "../keys";
import { POLL_MS, useEvents, useSoon } from "../live";
import { More, usePages } from "../pages";
import { link, namespace } from "../router";
import { may } from "../session";
import { Card, Command, Empty, Meter, Refusal, State, When } from "../ui/basics";
import { Table } from "../ui/table";

/** Jobs that a page brings. */
const PAGE = 100;

/** The state of a job, in words for people. */
export function JobState({ job, big = false }: { job: Job; big?: boolean }) {
  return <State state={job.state === "cancelling" ? "running" : job.state} word={job.state === "cancelled" ? "stopped" : job.state === "cancelling" ? "stopping" : job.state} big={big} />;
}

export function Jobs() {
  const ns = namespace();
  const jobs = usePages(
    `bulk ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/bulk", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (job) => job.bulk_id,
    POLL_MS,
  );
  const running = (jobs.items ?? []).some((job) => !job.ended_at);
  const again = useSoon(jobs.refresh, 400, 3_000, true);
  useEvents(() => running && again());
  useRows("main td a.open");
  return (
    <>
      <div class="title">
        <h1>Bulk jobs</h1>
        <div class="row">
          <Command line="ff bulk ls" />
        </div>
      </div>
      {jobs.error !== undefined && <Refusal error={jobs.error} />}
      <Card title={jobs.items && !jobs.more ? many(jobs.items.length, "job") : "Jobs"} flush>
        <Table
          label="Bulk jobs"
          items={jobs.items}
          keyOf={(job) => job.bulk_id}
          empty={
            <Empty title="There is no bulk job yet" command="ff bulk replay --state failed --since 1h --dry-run">
              A job cancels, replays, holds or changes everything that a filter matches, each execution once. <a href={link(["executions"])}>Executions</a> begins one from its filters.
            </Empty>
          }
          columns={[
            { name: "Job", cell: (job) => <a class="open" href={link(["bulk", job.bulk_id])}>{titleOf(job)}</a> },
            { name: "State", cell: (job) => <JobState job={job} /> },
            { name: "Which executions", cell: (job) => filterWords(job.filter).join(", ") || "all of the namespace" },
            {
              name: "Done",
              cell: (job) => (
                <>
                  {count(job.progress.done)} of {count(job.progress.matched)}
                  {!job.ended_at && <Meter value={job.progress.partitions_done} max={job.progress.partitions} label={`How far ${titleOf(job)} is`} tone="s-active" />}
                </>
              ),
            },
            { name: "Refused", num: true, cell: (job) => count(job.progress.refused) },
            { name: "By", minor: true, cell: (job) => job.created_by },
            { name: "Began", cell: (job) => <When at={job.created_at} /> },
            { name: "Ended", minor: true, cell: (job) => <When at={job.ended_at} none="not yet" /> },
            { name: "Actions", when: may("operator") && (jobs.items ?? []).some((job) => !job.ended_at || job.dry_run), cell: (job) => <JobActs job={job} done={jobs.refresh} /> },
          ]}
        />
        <More pages={jobs} />
      </Card>
    </>
  );
}
