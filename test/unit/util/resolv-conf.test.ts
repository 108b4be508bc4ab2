import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { hostResolvConf } from "../../../src/util/resolv-conf.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let folder: string;
let path: string;
let clock: VirtualClock;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-resolv-"));
  path = join(folder, "resolv.conf");
  clock = new VirtualClock();
});

afterEach(() => rmSync(folder, { recursive: true }));

test("has the first address of each line, the last search list, and all options", () => {
  writeFileSync(
    path,
    "# ours\nnameserver 10.0.0.1\nnameserver 10.0.0.2 10.0.0.3\ndomain old\nsearch a.example b.example\noptions ndots:2\noptions edns0\n",
  );
  expect(hostResolvConf(clock, path)()).toEqual({
    nameservers: ["10.0.0.1", "10.0.0.2"],
    searches: ["a.example", "b.example"],
    options: ["ndots:2", "edns0"],
  });
});

test("follows the file, a second after it was read", async () => {
  writeFileSync(path, "nameserver 10.0.0.1\n");
  const read = hostResolvConf(clock, path);
  read();
  writeFileSync(path, "nameserver 10.0.0.2\n");
  expect(read().nameservers).toEqual(["10.0.0.1"]);
  await clock.advance(1_001);
  expect(read().nameservers).toEqual(["10.0.0.2"]);
});

test("is empty on a host that has none", () => {
  expect(hostResolvConf(clock, path)()).toEqual({ nameservers: [], searches: [], options: [] });
});
