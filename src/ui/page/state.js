/** What the feed has told, and what of it is shown: phases, filter, order. Nothing here touches the page. */
export const PHASES = ["Pending", "Running", "Succeeded", "Failed"];

const COLLATOR = new Intl.Collator("en", { numeric: true });
const byText = (field) => (a, b) => COLLATOR.compare(a[field], b[field]);
const ORDERS = {
  status: (a, b) => PHASES.indexOf(b.phase) - PHASES.indexOf(a.phase) || byText("status")(a, b),
  name: byText("name"),
  node: (a, b) => byText("node")(a, b) || byText("host")(a, b),
  size: (a, b) => a.size.cpuMillis - b.size.cpuMillis || a.size.memoryBytes - b.size.memoryBytes,
  restarts: (a, b) => a.restarts - b.restarts,
  // Ages grow the other way than times.
  age: (a, b) => b.created - a.created,
};

export class State {
  nodes = new Map();
  pods = new Map();
  points = [];
  hello = undefined;
  faults = { nodes: undefined, pods: undefined };
  synced = false;
  /** What is shown. */
  phase = "";
  node = "";
  words = "";
  order = { by: "age", descending: false };
  /** The server's clock is ahead of this one by so many milliseconds. */
  #ahead = 0;
  #offered = { nodes: new Set(), pods: new Set() };

  now() {
    return Date.now() + this.#ahead;
  }

  /** The feed begins again: what it does not tell until it is complete is gone. */
  restart() {
    this.#offered = { nodes: new Set(), pods: new Set() };
    this.points = [];
    this.synced = false;
  }

  take(line) {
    switch (line.kind) {
      case "hello":
        this.restart();
        this.hello = line;
        this.#ahead = line.now - Date.now();
        return;
      case "tick":
        this.#ahead = line.now - Date.now();
        return;
      case "faults":
        this.faults = line;
        return;
      case "nodes":
      case "pods":
        for (const row of line.put) {
          this[line.kind].set(row.uid, row);
          this.#offered[line.kind].add(row.uid);
        }
        for (const uid of line.gone) this[line.kind].delete(uid);
        return;
      case "history":
        this.points.push(...line.points);
        if (this.points.length > 4_000) this.points = this.points.slice(-2_000);
        return;
      case "synced":
        this.synced = true;
        for (const kind of ["nodes", "pods"])
          for (const uid of this[kind].keys()) if (!this.#offered[kind].has(uid)) this[kind].delete(uid);
    }
  }

  nodeOf(pod) {
    for (const node of this.nodes.values()) if (node.name === pod.node) return node;
    return undefined;
  }

  /** Pods by phase, and what the pods that are not over ask of each node. */
  sums() {
    const phases = { Pending: 0, Running: 0, Succeeded: 0, Failed: 0 };
    const nodes = new Map();
    for (const { phase, node, size } of this.pods.values()) {
      phases[phase in phases ? phase : "Pending"]++;
      if (node === "" || phase === "Succeeded" || phase === "Failed") continue;
      const sum = nodes.get(node) ?? { pods: 0, running: 0, cpuMillis: 0, memoryBytes: 0 };
      sum.pods++;
      if (phase === "Running") sum.running++;
      sum.cpuMillis += size.cpuMillis;
      sum.memoryBytes += size.memoryBytes;
      nodes.set(node, sum);
    }
    return { phases, nodes };
  }

  /** The pods to show, in their order. */
  visible() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const pod of this.pods.values()) {
      if (this.phase !== "" && pod.phase !== this.phase) continue;
      if (this.node !== "" && pod.node !== this.node) continue;
      if (words.length > 0) {
        const text =
          `${pod.namespace}/${pod.name} ${pod.node} ${pod.host} ${pod.machine} ${pod.status} ${pod.instanceType}`.toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      found.push(pod);
    }
    const { by, descending } = this.order;
    const compare = ORDERS[by];
    const sign = descending ? -1 : 1;
    // Of equal ones the name decides, so that none changes its place without a reason.
    return found.sort((a, b) => sign * compare(a, b) || ORDERS.name(a, b) || (a.uid < b.uid ? -1 : 1));
  }
}
