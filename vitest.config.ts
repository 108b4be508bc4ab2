import { defineConfig } from "vitest/config";

const suite = (name: string, options: { timeoutMs?: number; serial?: boolean } = {}) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout: options.timeoutMs ?? 15_000,
    hookTimeout: options.timeoutMs ?? 15_000,
    fileParallelism: !options.serial,
  },
});

/** One project per level of the test pyramid; test/README.md says what belongs where. */
export default defineConfig({
  test: {
    projects: [
      suite("unit"),
      suite("integration", { timeoutMs: 60_000 }),
      suite("simulation", { timeoutMs: 900_000 }),
      suite("conformance", { timeoutMs: 300_000, serial: true }),
      suite("e2e", { timeoutMs: 300_000, serial: true }),
      suite("soak", { timeoutMs: 1_200_000, serial: true }),
    ],
  },
});
