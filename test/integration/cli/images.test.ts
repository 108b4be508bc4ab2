/** `vmlet images` as a script runs it: by how it ends the script knows whether it may go on. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
/** A backend that never answers. */
const server = createServer();
beforeEach(() => once(server.listen(0, "127.0.0.1"), "listening"));
afterEach(() => {
  server.closeAllConnections();
  server.close();
});

test.each([["pull"], ["remove"]])("one that is interrupted has not succeeded: %s", async (word) => {
  const { port } = server.address() as AddressInfo;
  const args = [program, "images", word, "r.test/app:1", "--backend", `http://127.0.0.1:${port}`];
  const child = spawn(process.execPath, args, { stdio: "ignore" });
  const ended = once(child, "exit");
  await once(server, "request");
  child.kill("SIGTERM");
  expect(await ended).toEqual([130, null]);
});
