//! Every bound of the system, by name and unit. A value past one of these gets a typed error and changes nothing.

/// Partitions of one family; an id has four hex digits for it.
pub const PARTITIONS_MAX: u32 = 65_536;

/// Input of an execution, and result of an attempt.
pub const INPUT_MAX_BYTES: usize = 1024 * 1024;
/// Result of an attempt.
pub const RESULT_MAX_BYTES: usize = 1024 * 1024;
/// Inputs, results, continuations and signal payloads up to this size live inside their document.
pub const INLINE_MAX_BYTES: usize = 1024;
/// Continuation bytes handed over by a suspension.
pub const CONTINUATION_MAX_BYTES: usize = 256 * 1024;
/// Payload of one signal.
pub const SIGNAL_PAYLOAD_MAX_BYTES: usize = 256 * 1024;
/// Payload of one stream frame.
pub const FRAME_MAX_BYTES: usize = 64 * 1024;
/// The merged summary document of a stream.
pub const SUMMARY_MAX_BYTES: usize = 256 * 1024;
/// Nesting of a summary patch.
pub const SUMMARY_DEPTH_MAX: usize = 64;
/// HTTP bodies of batch and graph requests.
pub const BATCH_BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// HTTP bodies of all other requests without a payload of their own.
pub const BODY_MAX_BYTES: usize = 64 * 1024;
/// The HTTP body of a registration, which may define tools with their schemas, and of renewals, of which there may be many.
pub const REGISTRATION_BODY_MAX_BYTES: usize = 2 * 1024 * 1024;

/// Nesting of a JSON value that is passed on as it came: a client that parses an answer around it has its own limit,
/// often 128.
pub const JSON_DEPTH_MAX: usize = 100;

/// Capability tokens in one set.
pub const CAPABILITIES_MAX_TOKENS: usize = 256;
/// Bytes of one capability set in its canonical form.
pub const CAPABILITIES_MAX_BYTES: usize = 4096;

/// Namespace, lane, worker, instance, budget and quota names.
pub const NAME_MAX_BYTES: usize = 64;
/// Kind of an execution or a flow.
pub const KIND_MAX_BYTES: usize = 128;
/// Idempotency and dedup keys, waitpoint keys, signal names, frame types, correlation ids.
pub const LABEL_MAX_BYTES: usize = 256;
/// Reasons and messages that people write.
pub const TEXT_MAX_BYTES: usize = 4096;
/// Content types.
pub const CONTENT_TYPE_MAX_BYTES: usize = 128;
/// Trace context handed from submitter to worker.
pub const TRACE_CONTEXT_MAX_BYTES: usize = 256;

/// Tags on one execution or flow.
pub const TAGS_MAX: usize = 32;
/// Key of a tag.
pub const TAG_KEY_MAX_BYTES: usize = 64;
/// Value of a tag.
pub const TAG_VALUE_MAX_BYTES: usize = 256;

/// How long a ticket opens streams.
pub const STREAM_TICKET_MS: i64 = 60_000;

/// The JSON schema of an answer that people give.
pub const ANSWER_SCHEMA_MAX_BYTES: usize = 16 * 1024;
/// Tools that one worker defines.
pub const TOOLS_PER_WORKER_MAX: usize = 64;
/// People that one question is for.
pub const ASSIGNEES_MAX: usize = 32;

/// Values of one filter of a list.
pub const FILTER_VALUES_MAX: usize = 64;
/// How far entries are counted for people where the store would have to walk through them.
pub const COUNTED_MAX: u64 = 10_000;

/// Priorities are clamped to 0..=this.
pub const PRIORITY_MAX: i64 = 9000;

/// Lease TTL when none is given.
pub const LEASE_TTL_DEFAULT_MS: i64 = 30_000;
/// Shortest lease TTL.
pub const LEASE_TTL_MIN_MS: i64 = 1_000;
/// Longest lease TTL.
pub const LEASE_TTL_MAX_MS: i64 = 24 * 3600 * 1000;
/// Renewals that may fail in a row before a lease counts as unhealthy.
pub const RENEWAL_FAILURES_MAX: u32 = 3;
/// Grant TTL when none is given.
pub const GRANT_TTL_DEFAULT_MS: i64 = 5_000;
/// Longest grant TTL; the shortest is 1 ms.
pub const GRANT_TTL_MAX_MS: i64 = 60_000;
/// Longest wait of a claim for work.
pub const CLAIM_WAIT_MAX_MS: i64 = 30_000;
/// Tasks one claim may take.
pub const CLAIM_TASKS_MAX: usize = 256;
/// Lanes one worker may serve.
pub const LANES_MAX: usize = 64;
/// Downstreams that the commit which ends an execution tells of it; the resolver tells more than these.
pub const DOWNSTREAMS_TOLD_MAX: usize = 8;
/// Endings one exchange may bring.
pub const EXCHANGE_ENDINGS_MAX: usize = 100;
/// Kinds one worker or claim may name.
pub const KINDS_MAX: usize = 256;
/// Leases one heartbeat or batch renewal may name.
pub const RENEWALS_MAX: usize = 1_000;
/// Shortest life of a worker's registration without a heartbeat.
pub const WORKER_TTL_MIN_MS: i64 = 1_000;
/// Concurrent tasks a worker may announce.
pub const WORKER_CAPACITY_MAX: u32 = 10_000;

/// Lease endings an execution remembers with their answers.
pub const LEASE_ENDINGS_KEPT: usize = 4;
/// Ended attempts and leases an execution's history keeps.
pub const HISTORY_MAX: u64 = 1_000;

/// Executions in one batch create.
pub const BATCH_CREATE_MAX: usize = 1_000;
/// Page size when none is given.
pub const PAGE_DEFAULT: usize = 100;
/// Largest page.
pub const PAGE_MAX: usize = 1_000;
/// Longest wait for a terminal state in one call.
pub const WAIT_MAX_MS: i64 = 30_000;

/// Retries when the policy says nothing.
pub const RETRIES_DEFAULT: u32 = 3;
/// Most retries a policy may ask for.
pub const RETRIES_MAX: u32 = 10_000;
/// Reclaims when the policy says nothing.
pub const RECLAIMS_DEFAULT: u32 = 100;
/// From so many leases lost in a row without a sign of work on, the next claim waits.
pub const IDLE_RECLAIMS_BACKOFF_FROM: u32 = 3;
/// How long the first of these waits is; each further one is twice as long.
pub const RECLAIM_BACKOFF_MS: i64 = 1_000;
/// The longest wait before a reclaim.
pub const RECLAIM_BACKOFF_MAX_MS: i64 = 60_000;
/// Lost leases of which an execution keeps what their workers last said.
pub const LAST_WORDS_KEPT: usize = 4;
/// Bytes of what a worker last said that are kept.
pub const LAST_WORDS_MAX_BYTES: usize = 256;
/// Replays when the policy says nothing.
pub const REPLAYS_DEFAULT: u32 = 10;
/// Categories in one retry policy.
pub const CATEGORIES_MAX: usize = 64;
/// Fallback tiers of one policy.
pub const FALLBACK_TIERS_MAX: usize = 16;
/// Longest duration a policy or request may name: ten years.
pub const DURATION_MAX_MS: i64 = 10 * 366 * 24 * 3600 * 1000;

/// Depth of a resume condition.
pub const CONDITION_DEPTH_MAX: usize = 4;
/// Matchers and nested conditions of one resume condition, all levels together.
pub const CONDITION_NODES_MAX: usize = 256;
/// Signals a `count` condition may wait for.
pub const CONDITION_COUNT_MAX: u32 = 1_000;
/// Waitpoints one suspension may listen on, and pending ones an execution may have.
pub const WAITPOINTS_MAX: usize = 32;
/// Signals buffered on one waitpoint.
pub const BUFFERED_SIGNALS_MAX: usize = 1_000;
/// Bytes of signals buffered on one waitpoint.
pub const BUFFERED_SIGNALS_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Signals one execution accepts when its policy says nothing.
pub const SIGNALS_PER_EXECUTION_DEFAULT: u32 = 10_000;
/// Life of an unused pending waitpoint when none is given.
pub const WAITPOINT_TTL_DEFAULT_MS: i64 = 24 * 3600 * 1000;
/// Longest delay between a satisfied condition and eligibility.
pub const RESUME_DELAY_MAX_MS: i64 = 24 * 3600 * 1000;

/// Nodes of a graph created in one call.
pub const GRAPH_NODES_MAX: usize = 1_000;
/// Edges of a graph created in one call.
pub const GRAPH_EDGES_MAX: usize = 5_000;
/// Members of one flow.
pub const FLOW_MEMBERS_MAX: u32 = 10_000;
/// Members listed by a repeated cancellation.
pub const FLOW_CANCEL_LISTED_MAX: usize = 1_000;
/// Marks or edges the resolver takes in one commit.
pub const RESOLVE_CHUNK: usize = 200;

/// Dimensions of one budget.
pub const BUDGET_DIMENSIONS_MAX: usize = 32;
/// The path of a budget that stands under others.
pub const BUDGET_PATH_MAX_BYTES: usize = 256;
/// Levels of a tree of budgets.
pub const BUDGET_LEVELS_MAX: usize = 5;
/// Budgets that stand under one root.
pub const BUDGET_CHILDREN_MAX: u64 = 100_000;
/// A budget that was made by its first use leaves when nothing was charged to it for so long and nothing is counted in it.
pub const BUDGET_CHILD_IDLE_MS: i64 = 3600 * 1000;
/// Budgets charged by one execution.
pub const BUDGETS_PER_EXECUTION_MAX: usize = 16;
/// Largest amount in one usage report, and largest limit: sums of them stay exact.
pub const USAGE_MAX: i64 = 1_000_000_000_000_000;
/// Shortest reset interval of a budget; each reset is a write.
pub const BUDGET_RESET_MIN_MS: i64 = 100;
/// Parts of a rolling window of a budget: room comes back at most one of them late.
pub const BUDGET_WINDOW_PARTS: i64 = 64;
/// How long a reservation of a budget is held when its holder does not say.
pub const RESERVATION_TTL_DEFAULT_MS: i64 = 10 * 60 * 1000;
/// Shortest time a reservation may be held.
pub const RESERVATION_TTL_MIN_MS: i64 = 1_000;
/// Longest time a reservation may be held.
pub const RESERVATION_TTL_MAX_MS: i64 = 24 * 3600 * 1000;
/// An ended reservation is known by its key this long, so that a repeat changes nothing and a late word corrects it.
pub const RESERVATION_REMEMBERED_MS: i64 = 24 * 3600 * 1000;
/// An execution that waits for the answer to a budget's question tries again after this time, in case the answer missed
/// it.
pub const ASKED_RECHECK_MS: i64 = 3600 * 1000;
/// It is looked this often whether something still waits for the answer to a budget's question.
pub const QUESTION_RECHECK_MS: i64 = 30 * 1000;
/// Flow partitions in which a budget or quota remembers parked work by number; with more it says "anywhere".
pub const PARKED_PARTITIONS_MAX: usize = 64;
/// Concurrent slots of one quota.
pub const QUOTA_CONCURRENT_MAX: u32 = 10_000;
/// Concurrency keys of one execution.
pub const CONCURRENCY_KEYS_MAX: usize = 4;
/// The largest limit of a concurrency key.
pub const CONCURRENCY_LIMIT_MAX: u32 = 10_000;
/// A concurrency key without holders that executions waited for is forgotten after this long.
pub const CONCURRENCY_IDLE_MS: i64 = 10_000;
/// Turns of a fair key that may count as one.
pub const FAIR_WEIGHT_MAX: u32 = 100;
/// Age that is worth one step of priority where a lane says nothing: 31 years.
pub const AGING_DEFAULT_MS: i64 = 1_000_000_000_000;
/// The longest a debounced submission may be put off by the next one.
pub const DEBOUNCE_WAIT_MAX_MS: i64 = 7 * 24 * 3600 * 1000;
/// Without a bound of its own a debounced burst is put off for at most so many waits.
pub const DEBOUNCE_WAITS_DEFAULT: i64 = 10;
/// Requests a quota's window may admit.
pub const QUOTA_REQUESTS_MAX: u32 = 10_000_000;
/// A quota's window when none is given.
pub const QUOTA_WINDOW_DEFAULT_SECONDS: u32 = 60;
/// Longest window of a quota.
pub const QUOTA_WINDOW_MAX_SECONDS: u32 = 7 * 24 * 3600;
/// Parts a quota's window is counted in.
pub const QUOTA_SUB_BUCKETS: i64 = 64;
/// Longest spread of the reopening of what a quota parked.
pub const QUOTA_JITTER_MAX_MS: i64 = 3600 * 1000;
/// Admissions a quota remembers by execution and attempt, so that a repeat is not counted again.
pub const QUOTA_RECENT_KEPT: usize = 128;
/// Amounts that were reserved this long ago and that the last of several budgets does not hold count as held all the same.
pub const RESERVING_MAX_MS: i64 = 10_000;
/// A concurrency slot whose execution holds another lease is freed at this age.
pub const SLOT_ORPHAN_AGE_MS: i64 = 10_000;
/// Work that a budget or quota blocks is looked at again within this time, hint or not.
pub const BLOCKED_RECHECK_MS: i64 = 30_000;
/// The same for work that a child by tag blocks: each waits by itself, so that looking costs more.
pub const BLOCKED_ALONE_RECHECK_MS: i64 = 5 * 60 * 1000;

/// Shortest interval of a schedule; each run is a commit.
pub const SCHEDULE_EVERY_MIN_MS: i64 = 1_000;
/// Instants that one schedule may name.
pub const SCHEDULE_INSTANTS_MAX: usize = 1_000;
/// Longest jitter of a schedule.
pub const SCHEDULE_JITTER_MAX_MS: i64 = 24 * 3600 * 1000;
/// Late instants that a schedule may run.
pub const SCHEDULE_CATCH_UP_MAX: u32 = 1_000;
/// An instant that the engine has not seen to by then is late, and `catch_up` decides about it.
pub const SCHEDULE_LATE_MS: i64 = 60_000;
/// Bytes of the template of a schedule, as JSON.
pub const SCHEDULE_TEMPLATE_MAX_BYTES: usize = 256 * 1024;
/// Records of past instants that a schedule keeps.
pub const SCHEDULE_RUNS_KEPT: usize = 20;
/// Coming instants that are shown.
pub const SCHEDULE_NEXT_SHOWN: usize = 10;
/// Backfills of one schedule at once.
pub const SCHEDULE_BACKFILLS_MAX: usize = 10;
/// Instants of one backfill.
pub const SCHEDULE_BACKFILL_INSTANTS_MAX: usize = 10_000;
/// Executions that one commit of a schedule creates, unless one run has more.
pub const SCHEDULE_EXECUTIONS_PER_COMMIT: usize = 20;

/// Executions that one bulk job changes at the most.
pub const BULK_MAX: u64 = 1_000_000;
/// The highest rate that a bulk job can be held to; above it, the store is the limit.
pub const BULK_RATE_MAX: u32 = 100_000;
/// Bulk jobs of one namespace that are under way at the same time.
pub const BULK_OPEN_MAX: u64 = 64;
/// Refusals of a bulk job that are listed; all of them are counted.
pub const BULK_REFUSALS_KEPT: usize = 100;
/// Executions that one turn of a bulk job changes.
pub const BULK_CHUNK: usize = 100;
/// Executions that one turn of a bulk job looks at.
pub const BULK_EXAMINED_CHUNK: u64 = 1_000;
/// Engines know the clock of a store to within a few milliseconds: where there are several, what changed so shortly after a
/// bulk job began counts as changed before, so that nothing is left out that its caller saw change.
pub const BULK_CLOCK_SLACK_MS: i64 = 5;
/// A bulk job that has ended is kept for this long at the least. An engine that was asleep in the middle of a turn for
/// less than this finds that the turn was made.
pub const BULK_KEPT_MIN_MS: i64 = 10 * 60 * 1000;
/// The part of a bulk job in one partition is looked at this often: one whose job is gone goes, too.
pub const BULK_PART_LOOK_MS: i64 = 24 * 3600 * 1000;
/// A turn that begins a partition's part of a bulk job commits within this time or not at all.
pub const BULK_TURN_MAX_MS: i64 = 60 * 1000;

/// Subscriptions of one deployment: each looks at every event.
pub const SUBSCRIPTIONS_MAX: u64 = 1_000;
/// Address of a webhook.
pub const WEBHOOK_URL_MAX_BYTES: usize = 2_048;
/// Shortest secret that webhooks are signed with.
pub const WEBHOOK_SECRET_MIN_BYTES: usize = 16;
/// Longest secret that webhooks are signed with.
pub const WEBHOOK_SECRET_MAX_BYTES: usize = 256;
/// A webhook that is not answered by then has failed.
pub const WEBHOOK_TIMEOUT_MS: i64 = 10_000;
/// So much of the answer to a webhook is read; a longer one is cut off, and counts.
pub const WEBHOOK_ANSWER_MAX_BYTES: usize = 64 * 1024;
/// A signature is good for this long before and after the instant that it names.
pub const SIGNATURE_TOLERANCE_MS: i64 = 5 * 60 * 1000;
/// Times a webhook is sent again when its subscription does not say.
pub const WEBHOOK_RETRIES_DEFAULT: u32 = 10;
/// Deliveries that are shown with their subscription.
pub const DELIVERIES_SHOWN: usize = 20;
/// Events that one look at a partition takes for its subscriptions.
pub const SUBSCRIPTION_EVENTS_PER_LOOK: usize = 200;
/// Deliveries that one commit creates.
pub const DELIVERIES_PER_COMMIT: usize = 100;
/// Events that no subscription wanted are passed over in memory; past so many the cursor is stored.
pub const SUBSCRIPTION_UNSTORED_MAX: u64 = 500;
/// How long a partition remembers that a subscription was removed: longer than a server may believe that it is there.
pub const SUBSCRIPTION_REMEMBERED_MS: i64 = 10 * 60 * 1000;

/// Frames one stream keeps when its policy says nothing.
pub const STREAM_RETENTION_DEFAULT: u64 = 10_000;
/// Frames one read may ask for.
pub const STREAM_READ_MAX: usize = 10_000;
/// Frames one call may append.
pub const FRAMES_PER_APPEND_MAX: usize = 1_000;
/// Longest wait of a tail.
pub const TAIL_WAIT_MAX_MS: i64 = 30_000;

/// Furthest leap of a clock that a test moves.
pub const TEST_CLOCK_ADVANCE_MAX_MS: i64 = 10 * 366 * 24 * 3600 * 1000;

/// Name of a journal entry.
pub const STEP_NAME_MAX_BYTES: usize = 128;
/// Result of one journal entry.
pub const STEP_RESULT_MAX_BYTES: usize = 1024 * 1024;
/// Results of journal entries up to this size live inside the journal.
pub const STEP_INLINE_MAX_BYTES: usize = 4 * 1024;
/// Digest of a journal entry's input, as text.
pub const STEP_INPUT_HASH_MAX_BYTES: usize = 64;
/// Journal entries one call may record.
pub const STEPS_PER_RECORD_MAX: usize = 100;
/// Things a parked execution may wait for at once.
pub const WAITS_MAX: usize = 1_000;
/// Records of one generation's journal.
pub const JOURNAL_ENTRIES_MAX: u64 = 10_000;
/// Bytes of one generation's journal, results included.
pub const JOURNAL_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Records behind the end of a full journal that only the engine writes: the ends of everything that one parking waits for.
pub const JOURNAL_RESERVE_ENTRIES: u64 = WAITS_MAX as u64;
/// Bytes of these records: the largest answer of a person, and what the others need without a result.
pub const JOURNAL_RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of the journal that a claim brings with one task; the rest is paged.
pub const JOURNAL_PER_TASK_MAX_BYTES: usize = 256 * 1024;
/// Bytes of journals that one answer brings.
pub const JOURNAL_PER_ANSWER_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Reports of holders that had lost their lease, kept beside the question they may answer.
pub const LATE_REPORTS_KEPT: usize = 8;
/// Journals of earlier generations that an execution keeps.
pub const GENERATIONS_KEPT: usize = 100;
/// Journals of earlier generations that an execution keeps which continues as new.
pub const CONTINUED_GENERATIONS_KEPT: usize = 1;
/// Equal results of a step that are taken for a loop when the policy does not say how many.
pub const NO_PROGRESS_SAME_DEFAULT: u32 = 5;
/// Records of the journal in which they are looked for when the policy does not say how many.
pub const NO_PROGRESS_WINDOW_DEFAULT: u32 = 50;
/// Most records of the journal in which a policy may have a loop looked for.
pub const NO_PROGRESS_WINDOW_MAX: u32 = 1_000;
/// Steps that an ending may name, such as those that its run never asked for.
pub const STEPS_NAMED_MAX: usize = 100;

/// Parts of a provider's window in which calls are counted; one of them is how early or late a call may come.
pub const PROVIDER_PARTS: i64 = 64;
/// Parts of the window after which a booking that was not taken is counted anew where its call is made.
pub const PROVIDER_LATE_PARTS: i64 = 16;
/// Windows ahead for which calls are booked; callers behind that come again.
pub const PROVIDER_HORIZON_WINDOWS: i64 = 16;
/// A provider's window when its definition says nothing.
pub const PROVIDER_WINDOW_DEFAULT_MS: i64 = 60_000;
/// The shortest window of a provider.
pub const PROVIDER_WINDOW_MIN_MS: i64 = 1_000;
/// The longest window of a provider.
pub const PROVIDER_WINDOW_MAX_MS: i64 = 24 * 3600 * 1000;
/// Most requests or tokens in a provider's definition or a call's cost.
pub const PROVIDER_AMOUNT_MAX: u64 = 1_000_000_000_000;
/// A booking that is not taken lapses so long after its instant.
pub const PROVIDER_BOOKING_GRACE_MS: i64 = 10_000;
/// A settled booking is remembered for so long.
pub const PROVIDER_REMEMBERED_MS: i64 = 3600 * 1000;
/// Thousandths of its limits that a throttled provider regains with each window.
pub const PROVIDER_INCREASE_THOUSANDTHS: u32 = 100;
/// Thousandths of its limits that a throttled provider keeps at the least.
pub const PROVIDER_FACTOR_MIN_THOUSANDTHS: u32 = 10;
/// How long a throttled provider is closed when it does not say.
pub const PROVIDER_CLOSED_DEFAULT_MS: i64 = 5_000;
/// The longest time for which a throttled provider is closed.
pub const PROVIDER_CLOSED_MAX_MS: i64 = 24 * 3600 * 1000;
/// Callers that wait in order for one of the calls at once; further ones come when they come.
pub const PROVIDER_WAITING_MAX: usize = 1_000;
/// How long a call is thought to take before one has ended.
pub const PROVIDER_CALL_DEFAULT_MS: i64 = 1_000;
/// The shortest time after which a caller that waits for a call to end asks again.
pub const PROVIDER_CALL_WAIT_MIN_MS: i64 = 50;
/// The longest such time.
pub const PROVIDER_CALL_WAIT_MAX_MS: i64 = 30_000;

/// Idempotency keys, dedup keys and signal keys are remembered this long.
pub const DEDUP_WINDOW_MS: i64 = 24 * 3600 * 1000;
/// The engine's evidence of a command whose caller gave it no identity lasts this long: longer than the engine repeats it.
pub const OWN_EVIDENCE_MS: i64 = 10 * 60 * 1000;
/// An event about a budget stands in the log within this time if the engine that owes it does not write it.
pub const BREACH_TOLD_WITHIN_MS: i64 = 1_000;
/// Terminal executions are kept this long.
pub const RETENTION_DEFAULT_MS: i64 = 7 * 24 * 3600 * 1000;
/// The record of a token that was revoked or has expired is kept this long.
pub const TOKEN_REMEMBERED_MS: i64 = 7 * 24 * 3600 * 1000;
/// Events a deployment keeps, spread over its partitions.
pub const EVENTS_KEPT: u64 = 100_000;
/// Events a partition keeps at the least.
pub const EVENTS_PER_PARTITION_MIN: u64 = 2_000;
/// Audit records of what was done that are kept.
pub const AUDIT_KEPT: u64 = 100_000;
/// Audit records of what was refused that are kept.
pub const AUDIT_REFUSALS_KEPT: u64 = 10_000;

/// A rotated waitpoint secret verifies this long.
pub const SECRET_GRACE_DEFAULT_MS: i64 = 24 * 3600 * 1000;
/// Name of a waitpoint secret.
pub const KID_MAX_BYTES: usize = 64;
/// Shortest waitpoint secret.
pub const SECRET_MIN_BYTES: usize = 32;
/// Longest waitpoint secret.
pub const SECRET_MAX_BYTES: usize = 1024;
/// Names of forgotten secrets are kept this long, so that they are never used for another secret.
pub const KID_REMEMBERED_MS: i64 = 90 * 24 * 3600 * 1000;
/// Waitpoint secrets that verify at the same time.
pub const WAITPOINT_SECRETS_MAX: usize = 64;
/// Names of forgotten secrets.
pub const FORGOTTEN_KIDS_MAX: usize = 10_000;

/// Operations in one commit.
pub const COMMIT_OPERATIONS_MAX: usize = 50_000;
/// Bytes in one commit.
pub const COMMIT_MAX_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of a document key, an index member or a log name.
pub const KEY_MAX_BYTES: usize = 255;
/// Bytes of an index name: a route may carry a full capability set.
pub const INDEX_NAME_MAX_BYTES: usize = 8 * 1024;
/// Scores and sequence numbers stay exact in a double.
pub const SCORE_MAX: i64 = (1 << 53) - 1;
