// What every peer on Node shares: the size of the work, and how a figure is printed.

import { readFileSync } from 'node:fs';
import { execFileSync } from 'node:child_process';

// Node before 22 does not have it, and Restate's SDK does not do without.
Promise.withResolvers ??= () => {
  let functions;
  const promise = new Promise((...both) => (functions = both));
  return { promise, resolve: functions[0], reject: functions[1] };
};

const number = (name, otherwise) => Number(process.env[name] ?? otherwise);

export const TASKS = number('PEER_TASKS', 10_000);
export const WORKERS = number('PEER_WORKERS', 16);
export const SUBMITTERS = number('PEER_SUBMITTERS', 64);
export const WAKES = number('PEER_WAKES', 200);
export const CHAINS = number('PEER_CHAINS', 50);
export const CHAINS_AT_ONCE = number('PEER_CHAINS_AT_ONCE', 100);
export const CHAIN_LENGTH = 10;
export const IDLE_SECONDS = number('PEER_IDLE_SECONDS', 10);
export const REPETITIONS = number('PEER_REPETITIONS', 1);
const ONLY = process.env.PEER_SCENARIOS?.split(',');

/** The installed version of a package. */
export const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')).version;

export const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

const round = (value) => Number(value.toPrecision(4));
const middle = (values) => values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) / 2)];
const percentile = (sorted, percent) => round(sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)]);

/**
 * Runs a scenario as often as asked and prints its figure.
 *
 * A scenario answers with a rate, or with a list of latencies in milliseconds.
 */
export async function measure(scenario, unit, note, run, more = {}) {
  if (ONLY && !ONLY.includes(scenario)) return;
  const answers = [];
  for (let repetition = 0; repetition < REPETITIONS; repetition++) {
    console.error(`${process.env.PEER_SYSTEM}: ${scenario} ${repetition + 1} of ${REPETITIONS}`);
    answers.push(await run(repetition));
  }
  const figures = {};
  if (Array.isArray(answers[0])) {
    const all = answers.flat().sort((a, b) => a - b);
    for (const percent of [50, 95, 99]) figures[`p${percent}`] = percentile(all, percent);
    figures.samples = all.length;
  } else {
    figures.rate = round(middle(answers));
    figures.rates = answers.map(round);
  }
  const { PEER_SYSTEM: system, PEER_VERSION: of, PEER_STORE: store, PEER_DURABILITY: durability } = process.env;
  console.log(JSON.stringify({ system, version: of, scenario, store, durability, repetitions: REPETITIONS, ...figures, unit, note, ...more }));
}

/** Things per second since a moment of `performance.now()`. */
export const perSecond = (count, began) => (count / (performance.now() - began)) * 1000;

/** Does something so many times, at most so many at once. */
export async function atOnce(times, limit, act) {
  let next = 0;
  const one = async () => {
    while (next < times) await act(next++);
  };
  await Promise.all(Array.from({ length: Math.min(limit, times) }, one));
}

/** A promise that is kept after so many calls of `hit`. */
export function countdown(times) {
  let left = times;
  const { promise, resolve } = Promise.withResolvers();
  return { done: promise, hit: () => --left === 0 && resolve() };
}

/** Commands that a Valkey server has carried out so far, those inside of scripts too; our own question is not one. */
export function valkeyCommands() {
  const text = execFileSync('valkey-cli', ['-p', process.env.PEER_PORT, 'info', 'commandstats'], { encoding: 'utf8' });
  const lines = [...text.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm)];
  return lines.filter(([, name]) => name !== 'info').reduce((sum, [, , calls]) => sum + Number(calls), 0);
}

/** Commands per second of a Valkey server while nothing happens. */
export async function idleCommands() {
  await sleep(2000);
  const before = valkeyCommands();
  await sleep(IDLE_SECONDS * 1000);
  return (valkeyCommands() - before) / IDLE_SECONDS;
}
