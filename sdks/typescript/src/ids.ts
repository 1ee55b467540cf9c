/** Ids that this process mints, and ids that derive from an entry of a journal. */
import { createHash, randomUUID } from "node:crypto";

/** A UUID of version 7: ids that were minted later sort later. */
export function uuid7(now = Date.now()): string {
  const time = now.toString(16).padStart(12, "0");
  // Version 4 has its random bits where version 7 has them, besides the time.
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}

/** The id of an execution of its own, spread over the partitions. */
export function spreadId(partitions: number): string {
  const id = uuid7();
  return `${(parseInt(id.slice(-8), 16) % partitions).toString(16).padStart(4, "0")}-${id}`;
}

/** Which entry of a journal: its name, and its key or how many calls of the name came before it. */
export interface StepIdentity {
  name: string;
  key?: string;
  occurrence?: number;
}

/** One text for each identity, for maps. Keys and counts are separate spaces. */
export function labelOf(identity: { name: string; key?: string | null; occurrence?: number | null }): string {
  return JSON.stringify([identity.name, identity.key ?? identity.occurrence ?? 0]);
}

/** The child of an entry. Every SDK derives the same id, so that spawning a child again finds it. */
export function childId(executionId: string, generation: number, identity: StepIdentity): string {
  const partition = executionId.slice(0, executionId.indexOf("-"));
  return `${partition}-${derived("child", executionId, generation, identity)}`;
}

/** A UUID that is the same in every run of a generation. */
export function derived(what: string, executionId: string, generation: number, identity: StepIdentity): string {
  const hex = digest(what, executionId, generation, identity).toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** A number from 0 up to 1 that is the same in every run of a generation. */
export function draw(executionId: string, generation: number, identity: StepIdentity): number {
  const bytes = digest("random", executionId, generation, identity);
  // A double has 53 bits for a fraction.
  return Number(bytes.readBigUInt64BE() >> 11n) / 2 ** 53;
}

/** Sixteen bytes that are the same in every run of a generation. */
function digest(what: string, executionId: string, generation: number, identity: StepIdentity): Buffer {
  const own = executionId.slice(executionId.indexOf("-") + 1).replaceAll("-", "");
  const [space, place] =
    identity.key === undefined
      ? ["count", bigEndian(identity.occurrence ?? 0)]
      : ["key", Buffer.from(identity.key)];
  const hash = createHash("sha256");
  for (const part of [what, Buffer.from(own, "hex"), bigEndian(generation), identity.name, space, place]) {
    const bytes = Buffer.from(part);
    hash.update(bigEndian(0)).update(bigEndian(bytes.length)).update(bytes);
  }
  return hash.digest().subarray(0, 16);
}

/** A digest of what a step works on. */
export function inputHash(input: unknown): string {
  const text = JSON.stringify(input) as string | undefined;
  return createHash("sha256").update(text ?? "null").digest("hex").slice(0, 32);
}

function bigEndian(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
