import { afterEach, expect, test, vi } from "vitest";
import { checkHost } from "../../../providers/local/check-host.ts";

afterEach(() => vi.unstubAllEnvs());

test("a host without flock is told how to get it, whatever the engine", () => {
  vi.stubEnv("PATH", "/nonexistent");
  expect(checkHost()).toEqual([
    { fatal: true, problem: expect.stringContaining("flock"), cure: expect.stringContaining("util-linux") },
  ]);
});
