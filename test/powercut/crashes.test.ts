/**
 * Hundreds of losses of power from one run of a host: all that it asks of its disk is kept, and with it any disk that a
 * loss of power at any moment could have left is made, and given to the backend's own code. `CRASHES`: how many
 * (default 60), `CRASH_SEED`: where chance begins. What is seen in them, and what only a boot shows: test/SIMULATION.md.
 */
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { runCommand } from "../e2e/harness/exec.ts";
import { passTime } from "../e2e/harness/wait.ts";
import { seeded } from "../simulation/seeded.ts";
import { leaveOut } from "../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../support/registry.ts";
import type { Answer, Question } from "./crashed-host.ts";
import { CrashedDisks } from "./host/crashed-disks.ts";
import type { Operation } from "./host/disk.ts";
import { EmulatedHost, insideName, makeImages, missingForHost } from "./host/host.ts";
import { type Asked, Roll, Workload } from "./workload.ts";

const CRASHES = Number(process.env["CRASHES"] ?? 60);
const SEED = Number(process.env["CRASH_SEED"] ?? 1);
/** Each asks for three machines, and for the end of some. */
const ROUNDS = Number(process.env["CRASH_ROUNDS"] ?? 6);
/** What goes on after a round before the next. */
const ROUND_MS = 15_000;
const CRASH_MS = 60_000;

/** What was known when so many operations had been asked of the disk. */
type Note = { at: number } & (
  | { id: string; asked: Asked }
  | { ran: string }
  | { found: string }
  | { wrote: string; number: number }
);

const copy = (from: string, to: string) => runCommand("cp", ["--sparse=always", from, to]);

const missing = [...missingForHost(), ...[missingForImages() ?? []].flat()];

if (missing.length > 0) leaveOut("crashed disks", missing);
else
  describe("disks that a loss of power could have left", () => {
    const random = seeded(SEED);
    const log: Operation[] = [];
    const notes: Note[] = [];
    let dir: string;
    let registry: TestRegistry;
    let image: string;
    let trees: Record<string, string>;
    let crashed: ChildProcessByStdio<Writable, Readable, null>;
    let answers: AsyncIterator<string>;

    beforeAll(async () => {
      dir = await mkdtemp(join(tmpdir(), "vmlet-crashes-"));
      registry = await startRegistry();
      await registry.push("busybox", await busyboxImage());
      image = `${insideName(registry.host)}/busybox`;
      const host = await EmulatedHost.make(await makeImages(dir), registry.host);
      const roll = new Roll((word) => notes.push({ at: log.length, ...word }));
      try {
        await copy(host.diskFile, join(dir, "empty"));
        host.disk.record(log);
        await host.boot();
        const workload = new Workload(image, await roll.listen(), {
          machine: (id, asked) => notes.push({ at: log.length, id, asked: structuredClone(asked) }),
          volume: (wrote) => notes.push({ at: log.length, wrote, number: 0 }),
        });
        // On a host that is overrun, more of them until there is something to lose.
        const isShort = () => roll.runs.size === 0 || roll.written.size === 0;
        for (let round = 0; round < ROUNDS || (isShort() && round < 4 * ROUNDS); round++) {
          // What became of it is looked at below, with patience.
          await workload.run(host.provider(), random, () => false);
          const until = performance.now() + ROUND_MS * (0.5 + random());
          while (performance.now() < until) {
            // A host that gets no processor answers late, or not at all.
            await workload.look(host.provider()).catch(() => []);
            await passTime(
              100,
              "What goes on by itself is worth a cut, and what is told of it is held against the disk.",
            );
          }
        }
        await host.shell("sync");
        expect(roll.faults).toEqual([]);
        expect(isShort()).toBe(false);
      } finally {
        await host.close();
        roll.close();
      }
      crashed = spawn(
        "unshare",
        [...["--mount", "--propagation", "private"], process.execPath, join(import.meta.dirname, "crashed-host.ts")],
        { stdio: ["pipe", "pipe", "inherit"] },
      );
      answers = createInterface({ input: crashed.stdout })[Symbol.asyncIterator]();
      const disks = new CrashedDisks(await fresh(), log);
      await disks.cut(log.length, random, join(dir, "whole"));
      disks.close();
      trees = (await ask({ disk: join(dir, "whole"), image, machines: [], volumes: [], runs: [] })).trees!;
      expect(Object.keys(trees)).not.toEqual([]);
    }, 1_200_000);

    afterAll(async () => {
      if (crashed?.exitCode === null) {
        const end = once(crashed, "exit");
        crashed.stdin.end();
        await end;
      }
      await registry.stop();
      await rm(dir, { recursive: true, force: true });
    });

    async function fresh(): Promise<string> {
      const path = join(dir, "moving");
      await copy(join(dir, "empty"), path);
      return path;
    }

    async function ask(question: Question): Promise<Answer> {
      crashed.stdin.write(`${JSON.stringify(question)}\n`);
      const { value, done } = await answers.next();
      if (done) throw new Error("the program that looks at disks has ended");
      return JSON.parse(value) as Answer;
    }

    /** What was asked, answered and begun by then. */
    function known(at: number): Pick<Question, "machines" | "volumes" | "runs"> {
      const machines = new Map<string, Asked>();
      const volumes = new Map<string, number>();
      const runs: string[] = [];
      for (const note of notes.filter((each) => each.at <= at))
        if ("ran" in note) runs.push(note.ran);
        else if ("wrote" in note) volumes.set(note.wrote, note.number);
        else if ("id" in note) machines.set(note.id, note.asked);
      return { machines: [...machines], volumes: [...volumes], runs };
    }

    /** After so many operations; most are drawn from where something had been asked for. */
    async function faultsAt(cuts: readonly number[], options: { isLying: boolean }): Promise<string[]> {
      const disks = new CrashedDisks(await fresh(), log, options);
      const disk = join(dir, "crashed");
      const faults: string[] = [];
      let [lost, torn, acknowledged, written] = [0, 0, 0, 0];
      try {
        for (const cut of cuts) {
          lost += await disks.cut(cut, random, disk);
          const asked = known(cut);
          acknowledged += asked.machines.filter(([, { created, deleted }]) => created || deleted).length;
          written += asked.volumes.filter(([, number]) => number > 0).length;
          const told = await ask({ disk, image, ...asked, trees });
          torn += told.torn;
          faults.push(...told.faults.map((fault) => `after ${cut} operations: ${fault}`));
        }
      } finally {
        disks.close();
        console.log(
          JSON.stringify({
            ...options,
            cuts: cuts.length,
            of: log.length,
            lost,
            torn,
            acknowledged,
            written,
            faults: faults.length,
          }),
        );
      }
      return faults;
    }

    const drawn = (count: number) => {
      const first = notes[0]!.at;
      const cuts = Array.from({ length: count }, () => first + Math.floor(random() * (log.length - first + 1)));
      return cuts.toSorted((a, b) => a - b);
    };

    test(
      "everything that was acknowledged is there, and nothing would run again",
      { timeout: CRASHES * CRASH_MS },
      async () => {
        expect(await faultsAt(drawn(CRASHES), { isLying: false })).toEqual([]);
      },
    );

    test("a disk that says it has flushed, and has not, is found out", { timeout: 20 * CRASH_MS }, async () => {
      expect(await faultsAt(drawn(10), { isLying: true })).not.toEqual([]);
    });
  });
