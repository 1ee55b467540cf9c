/** A task's stream: frames are sent in order, and those that gather during a call go together in the next. */
import { FlowFabricError } from "./errors.js";
import { Gatherer } from "./gather.js";
import type { components } from "./wire.js";

type FrameRequest = components["schemas"]["FrameRequest"];

const FRAMES_PER_CALL_MAX = 100;

export class FrameWriter {
  readonly #frames = new Gatherer<FrameRequest, undefined>((frames) => this.#send(frames), FRAMES_PER_CALL_MAX);
  #failure: unknown;

  constructor(
    private readonly append: (firstSequence: number, frames: FrameRequest[]) => Promise<unknown>,
    private next: number,
  ) {}

  write(frame: FrameRequest): void {
    this.#frames.put(frame).catch((error: unknown) => { this.#failure ??= error; });
  }

  /** Waits until every frame is stored; throws what went wrong. */
  async flush(): Promise<void> {
    await this.#frames.flush();
    if (this.#failure !== undefined) throw this.#failure as Error;
  }

  async #send(batch: FrameRequest[]): Promise<undefined[]> {
    if (this.#failure !== undefined) throw this.#failure as Error;
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
    return [];
  }
}
