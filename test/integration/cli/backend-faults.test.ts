/** `vmlet backend` and `vmlet dev` outlive what foreign code leaves to nobody, and stop in order after an exception of their own. */
import { spawn } from "node:child_process";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

const root = join(import.meta.dirname, "../../..");
/** Begins when somebody listens: before, it would end any process of Node's. */
const foreign = `
  const begun = () => process.listenerCount("unhandledRejection") > 0;
  setInterval(() => { if (begun()) Promise.reject(new Error("forgotten")); }, 20).unref();
  setInterval(() => { if (begun()) throw new Error("in a callback"); }, 20).unref();`;

/** As an exception of the reference backend looks, as soon as the file `now` is there. */
const own = (dir: string) => `
  import { existsSync } from "node:fs";
  const error = new Error("of its own");
  error.stack = "Error: of its own\\n    at f (${join(root, "providers/local/provider.ts")}:1:1)";
  const timer = setInterval(() => {
    if (!existsSync("${dir}/now")) return;
    clearInterval(timer);
    throw error;
  }, 20);`;

let dir: string;
const open: (() => unknown)[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-faults-"));
  writeFileSync(join(dir, "token"), "t".repeat(32));
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: join(dir, "state"),
    listen: { address: "127.0.0.1", port: 0 },
    tokenFile: join(dir, "token"),
    engine: { type: "process", images: {} },
  };
  writeFileSync(join(dir, "backend.yaml"), JSON.stringify(config));
  for (const file of ["token", "backend.yaml"]) chmodSync(join(dir, file), 0o600);
});
afterEach(async () => {
  for (const close of open.splice(0)) await close();
  rmSync(dir, { recursive: true, force: true });
});

/** Starts the command beside a module that does what `source` says. */
function start(args: readonly string[], source: string) {
  writeFileSync(join(dir, "careless.mjs"), source);
  const program = ["--import", join(dir, "careless.mjs"), join(root, "src/cli/main.ts")];
  const child = spawn(process.execPath, [...program, ...args], { cwd: dir, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (said += chunk));
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
  open.push(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  return { child, ended, said: () => said };
}

describe.each([
  { name: "backend", args: ["backend", "--config", "backend.yaml"], ready: "The backend serves the Machine API" },
  { name: "dev", args: ["dev", "--engine", "process", "--port", "0"], ready: "A cluster of one virtual node is up" },
])("vmlet $name", ({ args, ready }) => {
  test("goes on after errors that foreign code left to nobody, and logs them", async () => {
    const { child, ended, said } = start(args, foreign);
    await expect.poll(said, { timeout: 60_000 }).toContain(ready);
    expect(said()).toContain("the process goes on");
    child.kill("SIGTERM");
    expect(await ended, said()).toBe(0);
  });

  test("stops in order, and says that it failed, after an exception of its own code", async () => {
    const { ended, said } = start(args, own(dir));
    await expect.poll(said, { timeout: 60_000 }).toContain(ready);
    writeFileSync(join(dir, "now"), "");
    expect(await ended, said()).toBe(1);
    expect(said()).toContain("the process stops");
  });
});
