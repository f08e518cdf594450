// node-redlock under the same loads as the other clients. Each line of the input names a load; a line of numbers is the answer.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import { default as Redlock } from "redlock";

const [ttl, ...urls] = process.argv.slice(2);

function connect(options) {
  const nodes = urls.map((url) => new Redis(url, options));
  // Its own default delay; as many tries as it takes.
  const redlock = new Redlock(nodes, { retryCount: -1 });
  // What a node has refused is no error of a lock that a quorum has granted.
  redlock.on("error", () => {});
  return redlock;
}

// Each load has the connections that are better for it: one task is faster if each command is written at once, and many are if those
// of a turn of the event loop are written together.
const one = connect({});
const many = connect({ enableAutoPipelining: true });

const lock = (redlock, key) => redlock.acquire([key], Number(ttl));

async function cycle(redlock, key) {
  const held = await lock(redlock, key);
  await held.release();
}

async function warmUp() {
  for (const redlock of [one, many]) {
    for (let count = 0; count < 200; count += 1) await cycle(redlock, "warm-up");
  }
  return [];
}

// The microseconds of each cycle.
async function latency(ms) {
  const cycles = [];
  const start = performance.now();
  while (performance.now() - start < ms) {
    const begin = performance.now();
    await cycle(one, "latency");
    cycles.push((performance.now() - begin) * 1e3);
  }
  return cycles;
}

// The cycles of all tasks, the seconds that they took, and the microseconds of CPU time.
async function throughput(ms, tasks) {
  const start = performance.now();
  const before = process.cpuUsage();
  let cycles = 0;
  const task = async (number) => {
    while (performance.now() - start < ms) {
      await cycle(many, `throughput-${number}`);
      cycles += 1;
    }
  };
  await Promise.all(Array.from({ length: tasks }, (_, number) => task(number)));
  const { user, system } = process.cpuUsage(before);
  return [cycles, (performance.now() - start) / 1e3, user + system];
}

// The turns of each task, and after them the microseconds of each hand-off from one task to another.
async function contention(ms, tasks, hold, pause) {
  const start = performance.now();
  const turns = new Array(tasks).fill(0);
  const handoffs = [];
  let released;
  const task = async (number) => {
    while (performance.now() - start < ms) {
      const held = await lock(one, "contention");
      if (released && released.task !== number) handoffs.push((performance.now() - released.at) * 1e3);
      released = undefined;
      turns[number] += 1;
      await sleep(hold);
      released = { task: number, at: performance.now() };
      await held.release();
      await sleep(pause);
    }
  };
  await Promise.all(Array.from({ length: tasks }, (_, number) => task(number)));
  return [...turns, ...handoffs];
}

const loads = { warmUp, latency, throughput, contention };
for await (const line of createInterface({ input: process.stdin })) {
  const [load, ...numbers] = line.split(" ");
  const answer = await loads[load](...numbers.map(Number));
  console.log(answer.join(" "));
}
process.exit();
