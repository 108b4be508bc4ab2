/** What the program may start, load and evaluate: nothing that was made of a text, and programs only where that is the trade of the file. */
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");
const sources = ["src", "providers"]
  .flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((file) => `${folder}/${file}`),
  )
  .filter((file) => file.endsWith(".ts"))
  .map((file) => [file, readFileSync(join(root, file), "utf8")] as const);
const filesWith = (pattern: RegExp) => sources.flatMap(([file, text]) => (pattern.test(text) ? [file] : [])).toSorted();

test("no text is ever run as code", () => {
  expect(
    filesWith(/\beval\(|\bnew Function\b|(?:from |import\()"(?:node:)?(?:vm|repl|inspector)(?:\/promises)?"/),
  ).toEqual([]);
});

test("no program is started by a shell's line", () => {
  expect(filesWith(/import \{[^}]*\bexec(?:Sync)?\b[^}]*\} from "(?:node:)?child_process"|shell:\s*true/)).toEqual([]);
});

test("programs are started in these places only", () => {
  expect(filesWith(/"(?:node:)?child_process"/)).toEqual([
    "providers/local/engines/cri/held-connection.ts",
    "providers/local/engines/cri/own-containerd.ts",
    "providers/local/engines/oci/runtime.ts",
    "providers/local/engines/oci/user-namespace.ts",
    // What passes QEMU a disk.
    "providers/local/engines/vm/disks.ts",
    "providers/local/engines/vm/qemu.ts",
    "providers/local/host/command.ts",
    "providers/local/network/loopback-relay.ts",
    "providers/local/shim/client.ts",
    "providers/local/shim/shim.ts",
    "providers/local/shim/spawn.ts",
    // systemctl, on a host whose backend is a service of systemd.
    "src/cli/backend-service.ts",
    // An agent that is killed: the demo's, and that of `conformance --pods`.
    "src/cli/child-agent.ts",
    // What restarts the backend that is checked, as its author's flag says.
    "src/cli/conformance.ts",
    "src/cli/host-state.ts",
    // Credential plugins of the kubeconfig and of registries, as the administrator's configuration names them.
    "src/util/run-program.ts",
  ]);
});

test("modules are loaded by a name that is not in the source only where the configuration names a provider, and for terminals", () => {
  expect(filesWith(/\bimport\((?!\s*")/)).toEqual(["providers/local/shim/shim.ts", "src/cli/provider-module.ts"]);
});
