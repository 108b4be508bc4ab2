import { availableParallelism } from "node:os";
import { join } from "node:path";
import { defineConfig } from "vitest/config";

// Each worker, and each vmlet that a test starts, finds its code compiled.
process.env["NODE_COMPILE_CACHE"] ??= join(import.meta.dirname, "node_modules/.cache/vmlet-test");

/** What needs root and tools of the host, engines above all; these suites live beside the other integration tests. */
const ENGINES = ["oci/**/*", "cloud/**/*", "cri/**/*", "vm/**/*", "*/oci", "*/cri", "kube/dead-line"].map(
  (path) => `test/integration/${path}.test.ts`,
);

/** Minutes of harm to one agent or backend: too long for what is run again and again. */
const HOSTILE = ["hostile/hostile", "agent/killed", "backend/killed", "cli/process-faults"].map(
  (path) => `test/integration/${path}.test.ts`,
);

interface Options {
  timeoutMs?: number | undefined;
  serial?: boolean | undefined;
  include?: string[] | undefined;
  exclude?: string[] | undefined;
  globalSetup?: string[] | undefined;
  setupFiles?: string[] | undefined;
  /** The files of one worker share a process and its modules: a third of the time goes into loading them otherwise. */
  shared?: boolean | undefined;
  /** How long `expect.poll` waits. */
  pollMs?: number | undefined;
}

const suite = (name: string, options: Options = {}) => ({
  test: {
    name,
    include: options.include ?? [`test/${name}/**/*.test.ts`],
    exclude: options.exclude ?? [],
    globalSetup: options.globalSetup ?? [],
    setupFiles: options.setupFiles ?? [],
    isolate: !options.shared,
    expect: { poll: { timeout: options.pollMs ?? 1_000 } },
    testTimeout: options.timeoutMs ?? 30_000,
    hookTimeout: options.timeoutMs ?? 30_000,
    // Cases that run at the same time wait, most of the time, for what the others wait for.
    maxConcurrency: 13,
    fileParallelism: !options.serial,
    // Suites of real processes share two cores with whatever else CI runs; a test that needs its second try is printed so.
    retry: process.env["CI"] !== undefined && options.timeoutMs !== undefined ? 1 : 0,
  },
});

/** One project per level of the test pyramid; test/README.md says what belongs where. */
export default defineConfig({
  test: {
    // Tests of real processes and sockets mostly wait. Vitest's own number leaves one of two cores idle.
    maxWorkers: availableParallelism() + 1,
    // Of @connectrpc/connect-node, left to nobody where a client ends in the instant in which its server says that it goes. A backend
    // logs it and goes on (src/cli/faults.ts); its tests have no such guard.
    onUnhandledError: ({ name, message }) =>
      name !== "ConnectError" || message !== "[canceled] received GOAWAY without any open streams",
    projects: [
      suite("unit", {
        shared: true,
        globalSetup: ["test/support/temporary.ts"],
        setupFiles: ["test/support/tidy.ts"],
      }),
      suite("integration", { timeoutMs: 60_000, pollMs: 10_000, exclude: [...ENGINES, ...HOSTILE] }),
      // Its figures are those of an agent that has the machine for itself.
      suite("hostile", { timeoutMs: 120_000, serial: true, include: HOSTILE }),
      suite("engines", {
        timeoutMs: 300_000,
        serial: true,
        include: ENGINES,
        setupFiles: ["test/support/slice-tests.ts"],
      }),
      suite("simulation", { timeoutMs: 900_000 }),
      suite("page", { timeoutMs: 120_000, serial: true, pollMs: 30_000 }),
      suite("conformance", { timeoutMs: 300_000, serial: true }),
      suite("e2e", { timeoutMs: 300_000, serial: true }),
      suite("soak", { timeoutMs: 1_200_000, serial: true }),
      suite("powercut", { timeoutMs: 900_000, serial: true }),
    ],
  },
});
