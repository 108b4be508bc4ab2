/** Provider modules as their users have them: somewhere else, with nothing of vmlet installed beside them. */
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const root = join(import.meta.dirname, "../../..");
let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-module-"));
  mkdirSync(join(dir, "conf"));
});
afterAll(() => rmSync(dir, { recursive: true }));

/** What `vmlet check` prints of a node whose provider is this module; its cluster answers nothing. */
function check(module: string, source: string): Promise<string> {
  writeFileSync(join(dir, "conf/provider.mjs"), source);
  const nodes = [{ name: "burst-0", provider: { type: "module", module } }];
  const config = { apiVersion: "vmlet.dev/v1", kind: "AgentConfig", kubeconfig: "none", nodes };
  writeFileSync(join(dir, "conf/vmlet.yaml"), JSON.stringify(config));
  const args = [join(root, "src/cli/main.ts"), "check", "--config", "conf/vmlet.yaml"];
  return new Promise((resolve) => execFile(process.execPath, args, { cwd: dir }, (_error, stdout) => resolve(stdout)));
}

const provider = `{ getInfo: async () => ({ name: "elsewhere", version: "7", capabilities: [] }), close: async () => {} }`;

test("a module's path is one from the folder of the file that names it", async () => {
  const printed = await check("./provider.mjs", `export const createProvider = () => (${provider});`);
  expect(printed).toContain("elsewhere 7 answers");
});

test("a module that cannot be loaded was not asked, and is not said to be silent", async () => {
  const printed = await check("./provider.mjs", "import 'nothing-of-that-name';");
  expect(printed).toContain("FAULT   was not asked: provider.module: cannot load");
});

test("a backend that refuses has answered", async () => {
  const refusing = `{
    getInfo: () => Promise.reject(new ProviderError("unauthorized", "the bearer token is not accepted")),
    close: async () => {},
  }`;
  const source = `import { ProviderError } from "vmlet/provider-kit"; export const createProvider = () => (${refusing});`;
  expect(await check("./provider.mjs", source)).toContain(
    "FAULT   answers, but not as it should: the bearer token is not accepted",
  );
});

test("everything that the package exports can be imported by name from a module elsewhere", async () => {
  const { exports } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { exports: object };
  const names = Object.keys(exports).map((key) => key.replace(/^\./, "vmlet"));
  const imports = names.map((name, index) => `import * as m${index} from "${name}";`).join("\n");
  const known = names.map((_name, index) => `Object.keys(m${index}).length > 0`).join(" && ");
  const source = `${imports}\nexport const createProvider = () => { if (${known}) return ${provider}; };`;
  expect(names).toContain("vmlet/provider-kit");
  expect(await check(join(dir, "conf/provider.mjs"), source)).toContain("elsewhere 7 answers");
});
