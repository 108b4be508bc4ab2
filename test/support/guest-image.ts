/** A guest image that no guest could run, but whole: what the engine vm trusts before it starts a VM. */
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const FILES = {
  packages: "none\n",
  frequency: "#!/bin/sh\nexit 1\n",
  jail: "#!/bin/sh\nexit 2\n",
  give: "#!/bin/sh\nexit 2\n",
  "read-only.so": "library",
  vmlinux: "kernel",
  "base.cpio": "root",
  version: "1\n",
};

export function writeGuest(dir: string): void {
  let sums = "";
  for (const [name, content] of Object.entries(FILES)) {
    rmSync(join(dir, name), { force: true });
    writeFileSync(join(dir, name), content, { mode: 0o755 });
    sums += `${createHash("sha256").update(content).digest("hex")}  ${name}\n`;
  }
  writeFileSync(join(dir, "sums"), sums);
}
