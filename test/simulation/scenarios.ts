/**
 * What a world plays besides the everyday. Each scenario is run by itself, with its share of CI's schedules, and most of them
 * once more all together. `everyday` is always there: requests that fail, land late or lose their reply, agents that are killed
 * or doubled, lags, users, machines that end, vanish or do not stop.
 */
export interface Switches {
  /** Files of a ConfigMap and images of containers change while machines are made and run. */
  updates?: boolean;
  /** Pods with activeDeadlineSeconds. */
  deadlines?: boolean;
  /** Rendering has to wait, refuses a pod, or asks others to make room. */
  admission?: boolean;
  /** Something between agent and servers answers 404, 429 or times out by itself. */
  proxies?: boolean;
  /** Lists of machines lack half of them, or all. */
  shortLists?: boolean;
  /** The backend loses everything. */
  dataLoss?: boolean;
  /** The backend is put back to how it was some time ago. */
  restore?: boolean;
  /** Tombstones stay for ten minutes only, the least that the contract allows. */
  tombstonesExpire?: boolean;
  /** A machine that was over runs again. */
  revival?: boolean;
  /** Wall clocks of agents and backend are up to a day apart, and jump. */
  clocks?: boolean;
  /** The backend is silent for minutes. */
  outages?: boolean;
  /** Agents lose their lead and get it back. */
  leadership?: boolean;
  /** Containers become ready and unready all the time. */
  flapping?: boolean;
  /** The API server refuses parts of some pods' statuses for good. */
  refusals?: boolean;
  /** The backend describes machines in ways that make no sense, some of them for good. */
  nonsense?: boolean;
  /** Machines are VMs of a cloud, by the real provider of such. */
  cloud?: boolean;
  /** Some VMs of the cloud wait for machines. */
  pool?: boolean;
  /** Machines have volumes that outlive them, which a second node wants as well. */
  volumes?: boolean;
}

export interface Scenario {
  name: string;
  /** What is played, for test/SIMULATION.md. */
  what: string;
  switches: Switches;
  /** Of a hundred schedules that CI plays. */
  share: number;
}

const ALL: Switches = {
  updates: true,
  deadlines: true,
  admission: true,
  proxies: true,
  shortLists: true,
  dataLoss: true,
  tombstonesExpire: true,
  clocks: true,
  outages: true,
  leadership: true,
  flapping: true,
};

export const SCENARIOS: readonly Scenario[] = [
  {
    name: "everyday",
    what: "Requests fail, lose their reply, arrive late or after their sender died; agents are killed, doubled, lag; users; machines that end, vanish, do not stop; other nodes' pods and machines; leaks",
    switches: {},
    share: 16,
  },
  {
    name: "updates",
    what: "Files of ConfigMaps and images change while machines are made and run",
    switches: { updates: true },
    share: 8,
  },
  {
    name: "deadlines",
    what: "Pods with activeDeadlineSeconds",
    switches: { deadlines: true },
    share: 8,
  },
  {
    name: "admission",
    what: "ConfigMaps that come and go, a node that has no room, critical pods",
    switches: { admission: true },
    share: 8,
  },
  {
    name: "proxies",
    what: "Something in between answers 404, 429 or not at all",
    switches: { proxies: true },
    share: 6,
  },
  {
    name: "short-lists",
    what: "Lists of machines lack half of them, or all; with deadlines",
    switches: { shortLists: true, deadlines: true },
    share: 6,
  },
  {
    name: "data-loss",
    what: "The backend loses everything and counts anew",
    switches: { dataLoss: true },
    share: 4,
  },
  {
    name: "restore",
    what: "The backend is put back to how it was some time ago, and goes on from there",
    switches: { restore: true },
    share: 6,
  },
  {
    name: "tombstones-expire",
    what: "Tombstones stay for ten minutes only",
    switches: { tombstonesExpire: true },
    share: 4,
  },
  {
    name: "revival",
    what: "A machine that was over runs again",
    switches: { revival: true },
    share: 4,
  },
  {
    name: "clocks",
    what: "Wall clocks are up to a day apart and jump; with deadlines",
    switches: { clocks: true, deadlines: true },
    share: 4,
  },
  {
    name: "outages",
    what: "The backend is silent for minutes",
    switches: { outages: true },
    share: 4,
  },
  {
    name: "leadership",
    what: "Agents lose their lead and get it back",
    switches: { leadership: true },
    share: 3,
  },
  {
    name: "flapping",
    what: "Containers become ready and unready all the time",
    switches: { flapping: true },
    share: 3,
  },
  {
    name: "refusals",
    what: "The API server refuses for good what statuses of some pods hold: 422 that names the field, 413 that names none",
    switches: { refusals: true },
    share: 4,
  },
  {
    name: "nonsense",
    what: "Items of lists, events and answers that make no sense; of some machines for good",
    switches: { nonsense: true },
    share: 4,
  },
  {
    name: "cloud",
    what: "Machines are VMs of a cloud, by the real provider of such: answers are lost, lists lag, hosts go out of sight, VMs stop or are lost, sizes are sold out",
    switches: { cloud: true },
    share: 2,
  },
  {
    name: "pool",
    what: "The same with VMs that run before there is a machine for them: claims that are lost, late or never used",
    switches: { cloud: true, pool: true },
    share: 2,
  },
  {
    name: "volumes",
    what: "Machines have volumes that outlive them: claims that wait, volumes that are detached while a machine gets them, releases that are refused, a second node that wants the same ones and is lost at times",
    switches: { volumes: true },
    share: 3,
  },
  {
    name: "all",
    what: "All of these together, but for restore, revival, refusals, nonsense, clouds and volumes",
    switches: ALL,
    share: 8,
  },
];

export function scenarioNamed(name: string): Scenario {
  const found = SCENARIOS.find((each) => each.name === name);
  if (found === undefined)
    throw new Error(`There is no scenario "${name}"; take one of ${SCENARIOS.map((s) => s.name).join(", ")}`);
  return found;
}
