/** A task's stream: frames are sent in order, and those that gather during a call go together in the next. */
import type { Schemas } from "./client.js";
import { FlowFabricError } from "./errors.js";
import { Gatherer } from "./gather.js";
import type { TaskLink } from "./journal.js";

const FRAMES_PER_CALL_MAX = 100;

export class FrameWriter {
  readonly #frames = new Gatherer<Schemas["FrameRequest"], undefined>((frames) => this.#send(frames), FRAMES_PER_CALL_MAX);
  #next: number;
  #failure: unknown;

  constructor(private readonly link: TaskLink) {
    this.#next = link.task.next_frame_sequence;
  }

  write(frame: Schemas["FrameRequest"]): void {
    this.#frames.put(frame).catch((error: unknown) => { this.#failure ??= error; });
  }

  /** Waits until every frame is stored; throws what went wrong. */
  async flush(): Promise<void> {
    await this.#frames.flush();
    if (this.#failure !== undefined) throw this.#failure as Error;
  }

  async #send(frames: Schemas["FrameRequest"][]): Promise<[]> {
    if (this.#failure !== undefined) throw this.#failure as Error;
    const append = () => this.link.call("/frames", { first_sequence: this.#next, frames });
    try {
      await append();
    } catch (error) {
      // An earlier call that was given up may have been stored all the same; these frames then follow it.
      const stored = error instanceof FlowFabricError ? error.problem.details["next_sequence"] : undefined;
      if (typeof stored !== "number" || stored <= this.#next) throw error;
      this.#next = stored;
      await append();
    }
    this.#next += frames.length;
    return [];
  }
}
