/** A task's stream: frames are sent in order, and those that gather during a call go together in the next. */
import { FlowFabricError } from "./errors.js";
import type { components } from "./wire.js";

type FrameRequest = components["schemas"]["FrameRequest"];

const FRAMES_PER_CALL_MAX = 100;

export class FrameWriter {
  #waiting: FrameRequest[] = [];
  #sending: Promise<void> | undefined;
  #failure: unknown;

  constructor(
    private readonly append: (firstSequence: number, frames: FrameRequest[]) => Promise<unknown>,
    private next: number,
  ) {}

  write(frame: FrameRequest): void {
    if (this.#failure !== undefined) return;
    this.#waiting.push(frame);
    this.#sending ??= this.#sendAll().finally(() => (this.#sending = undefined));
  }

  /** Waits until every frame is stored; throws what went wrong. */
  async flush(): Promise<void> {
    await this.#sending;
    if (this.#failure !== undefined) throw this.#failure as Error;
  }

  async #sendAll(): Promise<void> {
    // What one turn of the function writes goes together.
    await Promise.resolve();
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, FRAMES_PER_CALL_MAX);
      try {
        await this.#send(batch);
      } catch (error) {
        this.#failure = error;
        this.#waiting = [];
      }
    }
  }

  async #send(batch: FrameRequest[]): Promise<void> {
    try {
      await this.append(this.next, batch);
    } catch (error) {
      // An earlier call that was given up may have been stored all the same; these frames then follow it.
      const stored = error instanceof FlowFabricError ? error.problem.details["next_sequence"] : undefined;
      if (typeof stored !== "number" || stored <= this.next) throw error;
      this.next = stored;
      await this.append(this.next, batch);
    }
    this.next += batch.length;
  }
}
