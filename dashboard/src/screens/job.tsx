// One bulk job: how far it is, what became of what it looked at, and what it could not change.

import { useEffect, useRef } from "preact/hooks";
import { answer, api, isMissing } from "../api/client";
import { JobActs } from "../bulk/acts";
import { filterWords, listLink, outcomeWords, titleOf } from "../bulk/words";
import type { Job } from "../bulk/words";
import { count, shortId, words } from "../format";
import { POLL_MS, now, useAsk, useEvents, useSoon } from "../live";
import { link } from "../router";
import { Card, Command, Copy, Empty, type Fact, Facts, Loading, Meter, Refusal, Tags, When } from "../ui/basics";
import { Table } from "../ui/table";
import { JobState } from "./jobs";

/** A job that began lately is looked at again after these, in milliseconds: most have ended by then. */
const LOOKS_MS = [500, 1_000, 2_000, 4_000];

export function JobScreen({ id }: { id: string }) {
  // What has ended does not change: it is not asked for again.
  const ended = useRef<Job | undefined>(undefined);
  const asked = useAsk(
    id,
    async (signal) => {
      const job = ended.current ?? (await answer(api.GET("/v1/bulk/{bulk_id}", { params: { path: { bulk_id: id } }, signal })));
      if (job.ended_at) ended.current = job;
      return job;
    },
    POLL_MS,
  );
  const again = useSoon(asked.refresh, 400, 2_000, true);
  useEvents(() => !ended.current && again());
  const job = asked.data.value;
  const fresh = job !== undefined && !job.ended_at && now.peek() - job.created_at < POLL_MS;
  useEffect(() => {
    if (!fresh) return;
    const timers = LOOKS_MS.map((wait) => setTimeout(asked.refresh, wait));
    return () => timers.forEach(clearTimeout);
  }, [fresh]);
  if (isMissing(asked.error.value)) {
    return (
      <Empty page title="There is no such bulk job" command="ff bulk ls">
        It never existed here, or it ended long ago and is forgotten. <a href={link(["bulk"])}>The list of bulk jobs</a> has those that are there.
      </Empty>
    );
  }
  if (!job) return asked.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={asked.error.value} />;
  const { progress } = job;
  const filter = filterWords(job.filter);
  const facts: Fact[] = [
    ["id", <><code>{job.bulk_id}</code><Copy text={job.bulk_id} what="the id" /></>],
    ["namespace", job.namespace],
    ["begun by", job.created_by],
    ["began", <When at={job.created_at} />],
    ["ended", <When at={job.ended_at} none="not yet" />],
    ["at most", `${count(job.max)}${job.rate_per_second ? `, ${count(job.rate_per_second)} a second` : ""}`],
  ];
  if (job.reason) facts.push(["reason", job.reason]);
  if (job.tags) facts.push(["tags that they get", <Tags tags={job.tags} />]);
  if (job.removed_at) facts.push(["is forgotten", <When at={job.removed_at} />]);
  return (
    <>
      <div class="title">
        <JobState job={job} big />
        <h1>{titleOf(job)}</h1>
        <JobActs job={job} done={asked.refresh} />
      </div>
      <div class="grid-side">
        <div class="stack">
          <section class="card" aria-label="How far it is">
            <div class="body stack">
              <strong>{outcomeWords(job)}</strong>
              <Meter value={progress.partitions_done} max={progress.partitions} label="How far it is" tone={job.state === "completed" ? "s-ok" : job.state === "cancelled" ? "s-none" : "s-active"} />
              <span class="small muted">
                {count(progress.examined)} looked at, {count(progress.partitions_done)} of {count(progress.partitions)} partitions
                {job.ended_at ? "" : "; it goes on by itself if this page is closed"}
              </span>
            </div>
          </section>
          <Card title="What became of those that match" flush>
            <Table
              label="What became of those that match"
              items={OUTCOMES.map(([name, meaning]) => ({ name: name(job), value: meaning(progress) }))}
              empty={null}
              columns={[
                { name: "Outcome", cell: (row) => row.name },
                { name: "Executions", num: true, cell: (row) => count(row.value) },
              ]}
            />
          </Card>
          <Card title="Could not be changed" flush>
            <Table
              label="Could not be changed"
              items={job.refusals ?? []}
              keyOf={(refusal) => refusal.execution_id}
              empty={<Empty title="Nothing refused it">What cannot be changed is listed here with the reason, the first hundred at most.</Empty>}
              columns={[
                {
                  name: "Execution",
                  cell: (refusal) => (
                    <span class="nowrap">
                      <a class="mono" href={link(["executions", refusal.execution_id])} title={refusal.execution_id}>
                        {shortId(refusal.execution_id)}
                      </a>
                      <Copy text={refusal.execution_id} what="the id" />
                    </span>
                  ),
                },
                { name: "Why", cell: (refusal) => words(refusal.code) },
              ]}
            />
          </Card>
        </div>
        <div class="stack">
          <Card title="Which executions" tools={<a href={listLink(job.filter)}>As a list</a>}>
            {filter.length === 0 ? <p class="muted">All of the namespace.</p> : <span class="row tight">{filter.map((one) => <span class="tag">{one}</span>)}</span>}
          </Card>
          <Card title="Details">
            <Facts facts={facts} />
          </Card>
          <Card title="From a terminal">
            <div class="stack">
              <Command line={`ff bulk get ${job.bulk_id}`} />
              <Command line={`ff bulk wait ${job.bulk_id}`} />
            </div>
          </Card>
        </div>
      </div>
    </>
  );
}

/** The counts of a job, with what each says. */
const OUTCOMES: [(job: Job) => string, (progress: Job["progress"]) => number][] = [
  [(job) => (job.dry_run ? "would be changed" : "changed"), (progress) => progress.done],
  [() => "were so before", (progress) => progress.unchanged],
  [(job) => (job.dry_run ? "would refuse it" : "refused it"), (progress) => progress.refused],
  [() => "changed since the job began, and left alone", (progress) => progress.changed_since],
];
