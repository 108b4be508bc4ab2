/**
 * Planted bugs that this world cannot show, because they are about the node, cost no more than time, or take a chance that it
 * seldom gives. Each is a change of one place in the sources, and is caught by a unit test of the name that is given here, which is run with the change.
 */
export interface HeldMutant {
  name: string;
  /** Number of the rule in ARCHITECTURE.md, "The protocol". */
  rule: number;
  /** The source, from the top of the repository, and what is replaced in it, which stands there once. */
  file: string;
  find: string;
  replace: string;
  /** The test that must fail, and its file below test/unit. */
  caughtBy: { file: string; test: string };
}

const PLANNER = "src/pods/planner.ts";
const NODE = "src/node/node-controller.ts";

export const HELD_BY_UNITS: readonly HeldMutant[] = [
  {
    name: "one look that finds no machine fails a pod that has run",
    rule: 2,
    file: PLANNER,
    find: 'if (memory.missedAt.length < 2) return { do: "look" };',
    replace: "",
    caughtBy: { file: "pods/planner.test.ts", test: "is looked for a second time after the debounce" },
  },
  {
    name: "what is buried for a refused pod is buried whatever is there by then",
    rule: 2,
    file: PLANNER,
    find: ': { do: "bury", force: false, ifAbsent: true, verdict };',
    replace: ': { do: "bury", force: false, verdict };',
    caughtBy: {
      file: "pods/creation.test.ts",
      test: "leaves the machine alone that another agent has made since this one looked",
    },
  },
  {
    name: "a machine is lost without ten seconds of patience",
    rule: 2,
    file: PLANNER,
    find: "monotonic - first < LOST_DEBOUNCE_MS",
    replace: "monotonic < first",
    caughtBy: { file: "pods/planner.test.ts", test: "is not failed by one absence" },
  },
  {
    name: "a pod that is gone is forgotten while the backend does not answer",
    rule: 2,
    file: PLANNER,
    find: 'return memory.podSeenGone || memory.created ? { do: "look" } : { do: "wait" };',
    replace: 'return { do: "forget" };',
    caughtBy: {
      file: "pods/planner.test.ts",
      test: "is asked about when its pod was seen to go, or was to have a machine, and no list can be had",
    },
  },
  {
    name: "a grace period that was shortened is not told to the backend",
    rule: 5,
    file: PLANNER,
    find: "memory.stopDeadline === undefined || monotonic + graceSeconds * 1000 < memory.stopDeadline - 1000",
    replace: "memory.stopDeadline === undefined",
    caughtBy: { file: "pods/planner.test.ts", test: "stops again when the grace period was shortened" },
  },
  {
    name: "what was said of a machine before is taken for news",
    rule: 4,
    file: "src/pods/machines.ts",
    find: "const isNews = known === undefined || isNewer(machine, known, knownBefore);",
    replace: "const isNews = known !== machine || isNewer(machine, known, knownBefore);",
    caughtBy: {
      file: "pods/machines.test.ts",
      test: "a tombstone is not replaced by what was said before of a machine of the same id",
    },
  },
  {
    name: "the node turns NotReady as soon as the backend is silent",
    rule: 8,
    file: NODE,
    find: "graceOver: failingForMs >= graceMs",
    replace: "graceOver: true",
    caughtBy: {
      file: "node/node-controller.test.ts",
      test: "is told of, leaves the node ready for the grace, then turns it not ready, and back",
    },
  },
  {
    name: "the lease is renewed only while the backend answers",
    rule: 8,
    file: NODE,
    find: "this.lease = new NodeLease({\n      kube,",
    replace:
      "this.lease = new NodeLease({\n      kube: { ...kube, request: (r: never) => (options.backend.failingSince === undefined ? kube.request(r) : Promise.reject(new Error())) } as never,",
    caughtBy: { file: "node/node-controller.test.ts", test: "never touches the lease" },
  },
  {
    name: "all pods of a backend that lacks their machines fail at once",
    rule: 8,
    file: "src/pods/loss-brake.ts",
    find: "  mayLose(podUid: string): boolean {",
    replace: "  mayLose(podUid: string): boolean {\n    if (podUid !== undefined) return true;",
    caughtBy: {
      file: "pods/loss-brake.test.ts",
      test: "everything is believed a twentieth of it, and ten at the least, in the first minute",
    },
  },
  {
    name: "a Node that is somebody else's is taken over",
    rule: 10,
    file: NODE,
    find: "if (foreign !== undefined) {",
    replace: "if (foreign === null) {",
    caughtBy: {
      file: "node/node-controller.test.ts",
      test: "refuses a Node that somebody else has made in place of its own",
    },
  },
  {
    name: "a machine of which nothing can be believed is swept",
    rule: 11,
    file: PLANNER,
    find: '  if (!memory.podSeenGone) return { do: "wait" };\n',
    replace: "",
    caughtBy: { file: "pods/planner.test.ts", test: "is never swept" },
  },
  {
    name: "a pod that can never run here fails at once, and so does each that replaces it",
    rule: 14,
    file: "src/pods/refusals.ts",
    find: '? "hold" : "pace";',
    replace: '? "fail" : "fail";',
    caughtBy: { file: "pods/refusals.test.ts", test: "and belongs to a apps/v1 ReplicaSet: hold" },
  },
  {
    name: "replacements of a pod that cannot run here now do not wait",
    rule: 14,
    file: "src/pods/refusals.ts",
    find: "return Math.max(0, rounds.until - this.#options.clock.monotonic());",
    replace: "return 0;",
    caughtBy: {
      file: "pods/refusals.test.ts",
      test: "lets the first pod fail at once, and its replacements at 10, 30, 70, 150, 310 and 610 seconds",
    },
  },
  {
    name: "a VM that its machine's entry names is needed, also when that machine is over",
    rule: 7,
    file: "providers/cloud/record.ts",
    find: 'vm !== undefined && phase !== "over" && phase !== "buried"',
    replace: 'vm !== undefined && phase !== "buried"',
    caughtBy: {
      file: "cloud/provider.test.ts",
      test: "a VM whose order arrived after its machine was over is removed, and its machine stays what it was",
    },
  },
  {
    name: "a machine's end takes the VM that its entry names, whoever has claimed it",
    rule: 10,
    file: "providers/cloud/pool.ts",
    find: "if (record?.machine !== machine.id) return false;",
    replace: "if (record === undefined) return false;",
    caughtBy: {
      file: "cloud/pool.test.ts",
      test: "that never claimed the VM of its entry leaves it alone when it is deleted",
    },
  },
  {
    name: "a VolumeAttachment that is being deleted counts as attached",
    rule: 15,
    file: "src/podspec/references/disks.ts",
    find: "status?.attached === true && metadata?.deletionTimestamp === undefined",
    replace: "status?.attached === true",
    caughtBy: {
      file: "podspec/disks.test.ts",
      test: "is waited for without a word while it is not attached: its VolumeAttachment is being deleted",
    },
  },
  {
    name: "a volume is claimed for a pod that went while its claims were read",
    rule: 15,
    file: "src/podspec/references/disks.ts",
    find: "if (!isNewest || this.#options.isLive?.(uid) === false)",
    replace: "if (this.#options.isLive?.(uid) === false)",
    caughtBy: {
      file: "podspec/disks.test.ts",
      test: "of a pod that goes while its claims are read is not in use on its account afterwards",
    },
  },
  {
    name: "a volume counts as told though a write that leaves it out may arrive yet",
    rule: 15,
    file: "src/node/volumes-in-use.ts",
    find: "this.#sure = new Set(names.filter((name) => this.#sure.has(name)));",
    replace: "",
    caughtBy: {
      file: "node/volumes-in-use.test.ts",
      test: "count as told no more from when a write leaves them out, which may arrive at any time",
    },
  },
  {
    name: "what the backend said of an older Node takes out what another agent has told since",
    rule: 15,
    file: "src/node/volumes-in-use.ts",
    find: "|| asOf !== version) this",
    replace: ") this",
    caughtBy: {
      file: "node/volumes-in-use.test.ts",
      test: "that another process tells again are asked about again, whatever the backend has said before",
    },
  },
  {
    name: "volumes in use are written whatever the Node says by then",
    rule: 15,
    file: "src/node/node-status.ts",
    find: 'metadata["resourceVersion"] = resourceVersion;',
    replace: "metadata;",
    caughtBy: {
      file: "node/node-controller.test.ts",
      test: "are not written over what another process has told since the Node was read",
    },
  },
];
