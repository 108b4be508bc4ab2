/**
 * Which room may import from which. One table for the whole house: an import that is not in it is either a mistake or a
 * decision that belongs here. Types count too.
 */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { describe, expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");

/** Room -> the rooms below it that it may import from. A room may always import from itself. */
const LAYERS: Record<string, readonly string[]> = {
  "src/util": [],
  "src/resources": ["src/util"],
  "src/http": ["src/util"],
  "src/telemetry": ["src/util", "src/http"],
  "src/queue": ["src/util", "src/telemetry"],
  "src/kube": ["src/util", "src/telemetry", "src/queue"],
  // The kit gives authors of provider modules the one error that ends the program with the user's exit code.
  "src/provider": ["src/util", "src/resources", "src/http", "src/telemetry", "src/queue", "src/config", "src/spdy"],
  "src/config": ["src/util", "src/resources"],
  "src/podspec": ["src/util", "src/resources", "src/telemetry", "src/queue", "src/kube", "src/provider", "src/config"],
  "src/spdy": ["src/util"],
  "src/streaming": ["src/util", "src/http", "src/provider", "src/spdy"],
  "src/node": ["src/util", "src/resources", "src/telemetry", "src/queue", "src/kube", "src/provider", "src/config"],
  "src/pods": ["src/util", "src/resources", "src/telemetry", "src/queue", "src/kube", "src/provider", "src/podspec"],
  "src/kubelet": ["src/util", "src/http", "src/telemetry", "src/kube", "src/provider", "src/streaming"],
  "src/devcluster": ["src/util", "src/http", "src/resources", "src/telemetry", "src/kube"],
  "src/csi": ["src/util", "src/http", "src/telemetry", "src/provider"],
  "src/webhook": ["src/util", "src/http", "src/telemetry", "src/kube"],
  "src/ui": [
    ...["src/util", "src/http", "src/resources", "src/telemetry", "src/kube", "src/streaming", "src/podspec"],
    "src/pods",
  ],
  "src/agent": [
    ...["src/util", "src/resources", "src/telemetry", "src/queue", "src/kube", "src/provider", "src/config"],
    ...["src/podspec", "src/node", "src/pods", "src/kubelet"],
  ],
  "src/cli": [
    ...[
      "src/util",
      "src/resources",
      "src/telemetry",
      "src/kube",
      "src/provider",
      "src/config",
      "src/node",
      "src/agent",
      "src/ui",
      "src/webhook",
      "src/csi",
      "src/streaming",
    ],
    ...["src/devcluster", "providers/http-vm", "providers/local", "providers/memory", "providers/cloud"],
  ],
  src: ["src/agent", "src/config", "src/provider", "src/telemetry"],
  // Providers see the package as their authors elsewhere do: by the kit alone (the test below).
  "providers/http-vm": ["src/provider"],
  "providers/local": ["src/provider", "src/csi", "providers/http-vm"],
  "providers/memory": ["src/provider"],
  "providers/cloud": ["src/provider", "providers/http-vm"],
};

/** The rooms of podspec: who decides does not render, who reads does neither. */
const OF_PODS = ["types.ts", "budget.ts", "pod-volumes.ts"];
const PODSPEC: Record<string, readonly string[]> = {
  references: [...OF_PODS, "image-name.ts", "nfs-volume.ts"],
  admission: [...OF_PODS, "bandwidth.ts", "security-context.ts"],
  render: [
    ...OF_PODS,
    "bandwidth.ts",
    "security-context.ts",
    "machine-id.ts",
    "image-name.ts",
    "nfs-volume.ts",
    "references",
    "admission",
  ],
};

/** The rooms of the reference backend. `machine` is the supervisor's: it sees engines only by `engine.ts`. */
const BACKEND: Record<string, readonly string[]> = {
  "devices.ts": [],
  "claims.ts": ["devices.ts"],
  "csi-volumes.ts": [],
  "volume-contents.ts": [],
  "engine.ts": ["devices.ts", "volume-contents.ts"],
  host: [],
  shim: ["engine.ts", "host"],
  images: ["engine.ts", "host"],
  network: ["engine.ts", "host"],
  bundle: ["devices.ts", "engine.ts", "host"],
  pressure: [],
  volumes: ["volume-contents.ts", "engine.ts", "host", "bundle"],
  machine: ["claims.ts", "csi-volumes.ts", "devices.ts", "volume-contents.ts", "engine.ts", "host", "shim", "pressure"],
  plugins: ["claims.ts", "csi-volumes.ts", "devices.ts", "host", "volumes"],
  engines: ["devices.ts", "volume-contents.ts", "engine.ts", "host", "shim", "images", "network", "bundle", "volumes"],
};

const KIT = "src/provider/kit/index.ts";
/** The two ends of the Machine API validate by it; other providers need not load the document. */
const CONTRACT = "src/provider/contract/document.ts";

/** CSI's messages: the driver of vmlet's own speaks them, and so do the node plugins of others. */
const CSI_API = "src/csi/api.gen.js";

const files = ["src", "providers"].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".ts"))
    .map((file) => `${folder}/${file}`),
);

const imports = files.flatMap((from) => {
  const text = readFileSync(join(root, from), "utf8");
  return [...text.matchAll(/(?:from|import\()\s*"(\.{1,2}\/[^"]+)"/g)].map(([, path]) => ({
    from,
    to: normalize(join(dirname(from), path!)),
  }));
});

/** `src/kube/store.ts` -> `src/kube`; `src/index.ts` -> `src`. */
const roomOf = (file: string): string => file.split("/").slice(0, -1).slice(0, 2).join("/");

/** `providers/local/machine/plan.ts` -> `machine`; `providers/local/engine.ts` -> `engine.ts`. */
const innerRoomOf = (file: string): string => file.split("/")[2]!;

describe("imports point one way", () => {
  test("every room is in the table", () => {
    expect([...new Set(files.map(roomOf))].toSorted()).toEqual(Object.keys(LAYERS).toSorted());
  });

  test.each(Object.entries(LAYERS))("%s imports only from rooms below it", (room, below) => {
    const wrong = imports.filter(({ from, to }) => {
      const target = roomOf(to);
      return roomOf(from) === room && target !== room && !below.includes(target);
    });
    expect(wrong).toEqual([]);
  });

  test("no line of the table allows what nothing uses", () => {
    const used = new Set(imports.map(({ from, to }) => `${roomOf(from)} -> ${roomOf(to)}`));
    const allowed = Object.entries(LAYERS).flatMap(([room, below]) => below.map((each) => `${room} -> ${each}`));
    expect(allowed.filter((arrow) => !used.has(arrow))).toEqual([]);
  });

  test("providers import of the package only its kit, the Machine API's ends the document too, and plugins CSI's messages", () => {
    const wrong = imports.filter(
      ({ from, to }) =>
        from.startsWith("providers/") &&
        to.startsWith("src/") &&
        to !== KIT &&
        !(to === CONTRACT && from.startsWith("providers/http-vm/")) &&
        !(to === CSI_API && from.startsWith("providers/local/plugins/")),
    );
    expect(wrong).toEqual([]);
  });

  describe.each([
    ["providers/local", BACKEND],
    ["src/podspec", PODSPEC],
  ])("inside of %s", (folder, rooms) => {
    const inside = imports
      .filter(({ from, to }) => [from, to].every((file) => file.startsWith(`${folder}/`)))
      .map(({ from, to }) => ({ room: innerRoomOf(from), target: innerRoomOf(to), from, to }))
      .filter(({ room, target }) => room !== target);

    test.each(Object.entries(rooms))("%s imports only from rooms below it", (room, below) => {
      expect(inside.filter((each) => each.room === room && !below.includes(each.target))).toEqual([]);
    });

    test("no line of the table allows what nothing uses", () => {
      const used = new Set(inside.map(({ room, target }) => `${room} -> ${target}`));
      const allowed = Object.entries(rooms).flatMap(([room, below]) => below.map((each) => `${room} -> ${each}`));
      expect(allowed.filter((arrow) => !used.has(arrow))).toEqual([]);
    });
  });

  test("no engine reaches into another", () => {
    const engineOf = (file: string): string | undefined => /^providers\/local\/engines\/([^/]+)\//.exec(file)?.[1];
    const wrong = imports.filter(
      ({ from, to }) => engineOf(from) !== undefined && engineOf(to) !== undefined && engineOf(from) !== engineOf(to),
    );
    expect(wrong).toEqual([]);
  });
});
