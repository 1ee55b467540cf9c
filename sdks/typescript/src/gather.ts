/** Calls that carry many things: what comes while one is under way goes together with the next. */

interface Waiting<T, R> {
  item: T;
  resolve: (answer: R) => void;
  reject: (error: unknown) => void;
}

/** Delivers items in their order. A single one is on its way at once, and a flood costs few calls. */
export class Gatherer<T, R> {
  #waiting: Waiting<T, R>[] = [];
  #sending: Promise<void> | undefined;

  constructor(
    private readonly deliver: (items: T[]) => Promise<readonly R[]>,
    private readonly limit: number,
    /** Whether the items of a delivery that failed so are delivered in smaller ones. */
    private readonly divides: (error: unknown) => boolean = () => false,
  ) {}

  /** Hands over an item. Its answer stands at the item's place in what the delivery answers. */
  put(item: T): Promise<R> {
    const answered = new Promise<R>((resolve, reject) => this.#waiting.push({ item, resolve, reject }));
    this.#sending ??= this.#send();
    return answered;
  }

  /** Waits until everything is delivered. */
  async flush(): Promise<void> {
    while (this.#sending !== undefined) await this.#sending;
  }

  async #send(): Promise<void> {
    // Branches that are about to hand something over in this turn do so first.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#waiting.length > 0) await this.#deliver(this.#waiting.splice(0, this.limit));
    this.#sending = undefined;
  }

  async #deliver(batch: Waiting<T, R>[]): Promise<void> {
    try {
      const answers = await this.deliver(batch.map(({ item }) => item));
      batch.forEach(({ resolve }, place) => { resolve(answers[place] as R); });
    } catch (error) {
      const half = batch.length >> 1;
      if (half === 0 || !this.divides(error)) batch.forEach(({ reject }) => { reject(error); });
      else for (const part of [batch.slice(0, half), batch.slice(half)]) await this.#deliver(part);
    }
  }
}
