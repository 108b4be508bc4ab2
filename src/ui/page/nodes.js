/** The nodes: a card each, with what its backend says and how full it is. */
import { age, cpu, memory, plain } from "./format.js";
import { h } from "./dom.js";

const BACKENDS = {
  answers: ["●", "backend answers"],
  doubtful: ["▲", "backend lacks machines"],
  fails: ["✕", "backend does not answer"],
  unknown: ["?", "backend not seen yet"],
};
/** Beyond these a filter helps more than a look. */
const MOST_CARDS = 60;

export class NodeCards {
  #place;
  #onChoose;
  #drawn = "";

  constructor(place, onChoose) {
    this.#place = place;
    this.#onChoose = onChoose;
  }

  draw(state, sums) {
    const nodes = [...state.nodes.values()].sort(
      // What needs somebody comes first.
      (a, b) => Number(isWell(a)) - Number(isWell(b)) || a.name.localeCompare(b.name, "en", { numeric: true }),
    );
    const key = JSON.stringify([nodes, [...sums], state.node, state.faults.nodes, state.synced, minutes(state.now())]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    const focused = document.activeElement?.closest?.(".node-card")?.dataset.name;
    this.#place.replaceChildren(...this.#content(state, nodes, sums));
    if (focused !== undefined)
      for (const card of this.#place.querySelectorAll(".node-card")) if (card.dataset.name === focused) card.focus();
  }

  #content(state, nodes, sums) {
    if (nodes.length > 0) {
      const more = nodes.length - MOST_CARDS;
      return [
        ...nodes.slice(0, MOST_CARDS).map((node) => this.#card(node, sums.get(node.name), state)),
        more > 0 && h("p", { class: "empty" }, `and ${more.toLocaleString("en")} more nodes`),
      ].filter(Boolean);
    }
    if (state.faults.nodes !== undefined)
      return [
        h(
          "p",
          { class: "empty" },
          "Nodes cannot be shown: the cluster does not let you see them. Machines are shown as far as their pods are.",
        ),
      ];
    if (!state.synced) return [h("p", { class: "empty" }, "Reading the nodes…")];
    return [
      h(
        "p",
        { class: "empty" },
        "No vmlet node in this cluster. An agent that runs registers one: ",
        h("code", {}, "vmlet run --config vmlet.yaml"),
        ".",
      ),
    ];
  }

  #card(node, sum = { pods: 0, running: 0, cpuMillis: 0, memoryBytes: 0 }, state) {
    const [shape, words] = BACKENDS[node.backend.state];
    const isChosen = state.node === node.name;
    const good = isWell(node);
    return h(
      "button",
      {
        type: "button",
        class: "node-card",
        "data-name": node.name,
        "aria-pressed": String(isChosen),
        title: plain(node.taints.join("\n")) || undefined,
        onclick: () => this.#onChoose(isChosen ? "" : node.name),
      },
      h(
        "span",
        { class: "node-head" },
        h("strong", {}, node.name),
        h("span", { class: "node-age" }, age(state.now() - node.created)),
      ),
      h(
        "span",
        { class: "node-state", "data-health": good ? "good" : node.state === "NotReady" ? "bad" : "doubtful" },
        h("span", { class: "mark", "aria-hidden": "true" }, shape),
        ` ${node.state}${node.cordoned ? ", cordoned" : ""} · ${words}`,
      ),
      !good &&
        node.backend.state !== "answers" &&
        node.backend.message !== "" &&
        h("span", { class: "node-message" }, plain(node.backend.message)),
      meter("pods", sum.pods, node.capacity.pods, (value) => value.toLocaleString("en")),
      meter("cpu", sum.cpuMillis, node.capacity.cpuMillis, cpu),
      meter("memory", sum.memoryBytes, node.capacity.memoryBytes, memory),
      h("span", { class: "node-foot" }, plain(`${node.runtime.replace("://", " ")} · ${node.version}`)),
    );
  }
}

function meter(name, used, capacity, format) {
  const share = capacity === 0 ? 0 : Math.min(1, used / capacity);
  const bar = h("span", { class: "meter-bar" });
  bar.style.setProperty("--share", String(share));
  return h(
    "span",
    { class: "meter" },
    h("span", { class: "meter-name" }, name),
    h("span", { class: "meter-track", "aria-hidden": "true" }, bar),
    h("span", { class: "meter-text" }, `${format(used)} of ${format(capacity)}`),
  );
}

const isWell = ({ state, backend }) => state === "Ready" && backend.state === "answers";
const minutes = (ms) => Math.floor(ms / 60_000);
