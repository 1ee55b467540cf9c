// The text format of Prometheus.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/** Takes the text format of Prometheus apart. */
export function parseMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    const [, name, labels, value] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    const found = [...(labels ?? "").matchAll(LABEL)].map(([, key, inner]) => [key, (inner ?? "").replace(/\\(.)/g, (_, after: string) => (after === "n" ? "\n" : after))]);
    samples.push({ name, labels: Object.fromEntries(found) as Record<string, string>, value: Number(value) });
  }
  return samples;
}

/** The sum of every sample of a name. */
export function total(samples: Sample[], name: string): number {
  return samples.filter((sample) => sample.name === name).reduce((sum, sample) => sum + sample.value, 0);
}
