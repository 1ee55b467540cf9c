/**
 * A thread of its own renews leases and the worker's registration, so that a function that blocks the event loop does
 * not lose its lease. It is told which leases are held and tells which are lost.
 */
import { parentPort, workerData } from "node:worker_threads";

import type { Schemas } from "./client.js";
import { FlowFabricError } from "./errors.js";
import { Connection, type ConnectOptions } from "./http.js";

export interface RenewerData {
  connect: ConnectOptions;
  /** Where the worker is registered. */
  route: string;
  registration: { nonce: string; kinds: string[]; lanes: readonly string[]; lease_ttl_ms: number; [field: string]: unknown };
}

/** A lease, and how long it lasts from now on. */
export type HeldLease = Pick<Schemas["Task"], "execution_id" | "fence" | "lease_ttl_ms">;

/** A change: leases that are held from now on, and the ids of those that are not held any more. */
export interface ToRenewer {
  hold: HeldLease[];
  release: string[];
}
export type FromRenewer = { ready: true } | { lost: string; reason: string } | { trouble: string } | { replaced: true };

const RENEWALS_PER_CALL_MAX = 100;

class Renewer {
  readonly #held = new Map<string, HeldLease & { until: number }>();
  readonly #connection: Connection;
  readonly #periodMs: number;
  #lastBeat = performance.now();
  /** Heartbeats that failed one after another; only the first is told. */
  #failures = 0;

  constructor(
    private readonly data: RenewerData,
    private readonly tell: (message: FromRenewer) => void,
  ) {
    this.#connection = new Connection(data.connect);
    this.#periodMs = Math.floor(data.registration.lease_ttl_ms / 3);
  }

  hear({ hold, release }: ToRenewer): void {
    for (const lease of hold) this.#held.set(lease.fence.lease_id, { ...lease, until: performance.now() + lease.lease_ttl_ms });
    for (const leaseId of release) this.#held.delete(leaseId);
  }

  /** Beats for ever. An idle worker beats half as often: its registration lives twice as long as a lease. */
  async run(): Promise<never> {
    // The first beat loads what the others need. A function that takes all of the processor finds them at work.
    await this.#beat();
    this.tell({ ready: true });
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, this.#pauseMs()));
      this.#loseExpired();
      if (performance.now() - this.#lastBeat < this.#periodMs * (this.#held.size === 0 ? 1.5 : 1)) continue;
      this.#lastBeat = performance.now();
      await this.#beat();
    }
  }

  async #beat(): Promise<void> {
    const all = [...this.#held.values()];
    for (let from = 0; from === 0 || from < all.length; from += RENEWALS_PER_CALL_MAX) {
      const chunk = all.slice(from, from + RENEWALS_PER_CALL_MAX);
      const asked = performance.now();
      try {
        for (const result of await this.#renew(chunk)) this.#note(result, asked);
        this.#failures = 0;
      } catch (error) {
        if (this.#failures++ === 0) this.tell({ trouble: error instanceof Error ? error.message : String(error) });
      }
    }
    this.#loseExpired();
  }

  /** Until the next beat, or until the first lease runs out that could not be renewed. */
  #pauseMs(): number {
    const now = performance.now();
    let pause = this.#periodMs - ((now - this.#lastBeat) % this.#periodMs);
    for (const { until } of this.#held.values()) pause = Math.min(pause, until - now);
    return Math.max(1, Math.ceil(pause));
  }

  #loseExpired(): void {
    for (const [leaseId, lease] of this.#held) {
      if (lease.until <= performance.now()) this.#lose(leaseId, "expired");
    }
  }

  async #renew(leases: HeldLease[]): Promise<Schemas["RenewalOutcome"][]> {
    const renewals = leases.map(({ execution_id, fence }) => ({ execution_id, fence }));
    const { route, registration } = this.data;
    // An answer that comes later than the next beat is of no use.
    const signal = AbortSignal.timeout(this.#periodMs);
    try {
      const beat = await this.#connection.call<Schemas["HeartbeatWorkerOutcome"]>("POST", `${route}/heartbeat`, {
        body: { nonce: registration.nonce, leases: renewals, ...this.#connection.scope },
        signal,
        idempotencyKey: null,
      });
      return beat.leases;
    } catch (error) {
      if (!(error instanceof FlowFabricError)) throw error;
      if (error.code === "duplicate_worker_instance") this.tell({ replaced: true });
      else if (error.code === "worker_not_found") {
        // The registration ran out, or an operator removed it; the leases are as good as before.
        await this.#connection.call("PUT", route, { body: registration, signal });
      }
      if (renewals.length === 0) return [];
    }
    const renewed = await this.#connection.call<Schemas["RenewLeasesOutcome"]>("POST", "/v1/leases/renew", { body: { leases: renewals }, signal, idempotencyKey: null });
    return renewed.results;
  }

  #note(result: Schemas["RenewalOutcome"], asked: number): void {
    const lease = this.#held.get(result.lease_id);
    if (lease === undefined) return;
    if (result.outcome === "renewed") lease.until = asked + lease.lease_ttl_ms;
    else if (result.outcome === "lost") this.#lose(result.lease_id, result.reason);
  }

  #lose(leaseId: string, reason: string): void {
    if (this.#held.delete(leaseId)) this.tell({ lost: leaseId, reason });
  }
}

const port = parentPort;
if (port !== null) {
  const renewer = new Renewer(workerData as RenewerData, (message) => { port.postMessage(message); });
  port.on("message", (message: ToRenewer) => { renewer.hear(message); });
  void renewer.run();
}
