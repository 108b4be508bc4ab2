/**
 * The samples that `vmlet new backend` writes keep every rule that the kit can see, those of a restart included, which is
 * a SIGKILL here.
 */
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { httpTarget, HttpVmProvider } from "../../providers/http-vm/index.ts";
import { writeSample } from "../../src/cli/new.ts";
import { runPodConformance } from "../../src/cli/pod-kit/run.ts";
import { runConformance } from "../../src/provider/kit/index.ts";
import { allDeleted } from "./all-deleted.ts";

interface Sample {
  lang: string;
  /** Makes of a fresh copy what is run. */
  command: (dir: string) => Promise<string[]>;
}

const SAMPLES: readonly Sample[] = [
  { lang: "python", command: async (dir) => ["python3", join(dir, "backend.py")] },
  {
    lang: "go",
    command: async (dir) => {
      await promisify(execFile)("go", ["build", "-o", "backend", "."], {
        cwd: dir,
        env: { ...process.env, GOFLAGS: "" },
      });
      return [join(dir, "backend")];
    },
  },
  { lang: "typescript", command: async (dir) => [process.execPath, join(dir, "main.ts")] },
];

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

class RunningSample {
  readonly #words: readonly string[];
  #child: ChildProcess | undefined;

  constructor(words: readonly string[]) {
    this.#words = words;
  }

  /** Resolves when it listens. @throws Error with what it said when it ends before */
  async start(): Promise<void> {
    const [program, ...words] = this.#words;
    const child = spawn(program!, words, { stdio: ["ignore", "pipe", "pipe"] });
    this.#child = child;
    let said = "";
    child.stderr.on("data", (data: Buffer) => (said = (said + data.toString()).slice(-10_000)));
    const listens = new Promise<void>((resolve) => {
      child.stdout.on("data", (data: Buffer) => data.toString().startsWith("listening on ") && resolve());
    });
    const ends = once(child, "exit").then(() => {
      throw new Error(`${program} ended: ${said}`);
    });
    await Promise.race([listens, ends]);
    ends.catch(() => undefined);
  }

  async kill(): Promise<void> {
    if (this.#child === undefined || this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const gone = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await gone;
  }
}

describe.each(SAMPLES)("the sample in $lang", ({ lang, command }) => {
  let dir: string;
  let sample: RunningSample;
  let provider: HttpVmProvider;
  let target: { url: string; credentials: { tokenFile: string } };
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), `vmlet-sample-${lang}-`));
    await writeSample(lang, join(dir, "code"));
    const port = await freePort();
    const state = join(dir, "state");
    sample = new RunningSample([...(await command(join(dir, "code"))), "--state", state, "--port", `${port}`]);
    await sample.start();
    target = { url: `http://127.0.0.1:${port}`, credentials: { tokenFile: join(state, "token") } };
    provider = new HttpVmProvider(target);
  });
  afterEach(async () => {
    await allDeleted(provider);
    await provider.close();
    await sample.kill();
    await rm(dir, { recursive: true, force: true });
  });

  test("keeps every rule that it is subject to, when it is killed as well", async () => {
    const report = await runConformance(provider, {
      http: httpTarget(target),
      restart: async () => {
        await sample.kill();
        await sample.start();
      },
      patienceMs: 60_000,
    });
    expect(report.results.filter(({ outcome }) => outcome === "failed")).toEqual([]);
    const skipped = report.results.filter(({ outcome }) => outcome === "skipped");
    // It declares nothing, and is asked for everything else.
    const forOtherReasons = skipped.filter(({ message }) => !/capability|port|patches|announced/.test(message ?? ""));
    expect(forOtherReasons).toEqual([]);
    expect(report.passed).toBeGreaterThan(150);
  });

  test("runs pods as a cluster's owner expects, when agent and sample are killed in the middle", async () => {
    const { results, failed, passed } = await runPodConformance({
      ...{ provider, signal: new AbortController().signal, patienceMs: 60_000, concurrency: 8 },
      backend: { type: "http-vm", url: target.url, ...target.credentials },
      restart: async () => {
        await sample.kill();
        await sample.start();
      },
    });
    expect(results.filter(({ outcome }) => outcome === "failed")).toEqual([]);
    expect({ failed, passed }).toEqual({ failed: 0, passed: 18 });
  });
});
