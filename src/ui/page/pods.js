/** The list of machines: only the rows that are in view exist, however many there are. */
import { age, costOf, money, plain, size } from "./format.js";
import { h, setText, stateMark } from "./dom.js";

const ROW = 40;
/** Rows beyond the view, above and below. */
const SPARE = 6;
const COLUMNS = [
  ["status", "State"],
  ["name", "Machine"],
  ["node", "Runs on"],
  ["size", "Size"],
  ["restarts", "Restarts"],
  ["cost", "Cost"],
  ["age", "Age"],
];

export class PodList {
  #state;
  #onOpen;
  #head = h("div", { class: "pod-head", role: "row", "aria-rowindex": "1" });
  #rows = h("div", { class: "pod-rows", role: "rowgroup" });
  #space = h("div", { class: "pod-space", role: "presentation" });
  #grid;
  #empty = h("div", { class: "empty", hidden: true });
  #buttons = new Map();
  /** Elements by their place in the list. */
  #elements = new Map();
  #pods = [];
  /** UID of the row that the keyboard is on. */
  #current = "";

  constructor(place, state, onOpen) {
    this.#state = state;
    this.#onOpen = onOpen;
    for (const [name, title] of COLUMNS) {
      const button = h("button", { type: "button", onclick: () => this.#orderBy(name) }, title);
      if (name === "cost") button.disabled = true;
      const cell = h("div", { class: `cell ${name}`, role: "columnheader" }, button);
      this.#buttons.set(name, cell);
      this.#head.append(cell);
    }
    this.#rows.append(this.#space);
    this.#grid = h(
      "div",
      { class: "grid", role: "grid", tabindex: "0", "aria-label": "Machines" },
      this.#head,
      this.#rows,
    );
    this.#rows.addEventListener("scroll", () => this.#place(), { passive: true });
    this.#grid.addEventListener("keydown", (event) => this.#key(event));
    this.#rows.addEventListener("click", (event) => {
      const uid = event.target.closest?.(".pod")?.dataset.uid;
      if (uid === undefined) return;
      this.#current = uid;
      this.#place();
      this.#onOpen(uid);
    });
    new ResizeObserver(() => this.#place()).observe(this.#rows);
    place.append(this.#grid, this.#empty);
  }

  focus() {
    this.#grid.focus();
  }

  /** What is shown is another: filter, order or pods. */
  draw() {
    const state = this.#state;
    this.#pods = state.visible();
    const hasPrices = [...state.nodes.values()].some(({ price }) => price !== undefined);
    this.#grid.classList.toggle("with-cost", hasPrices);
    this.#grid.setAttribute("aria-rowcount", String(this.#pods.length + 1));
    this.#space.style.height = `${this.#pods.length * ROW}px`;
    for (const [name, cell] of this.#buttons) {
      const isIt = state.order.by === name;
      cell.setAttribute("aria-sort", isIt ? (state.order.descending ? "descending" : "ascending") : "none");
    }
    this.#empty.hidden = this.#pods.length > 0;
    this.#rows.hidden = this.#pods.length === 0;
    if (this.#pods.length === 0) this.#empty.replaceChildren(...emptyWords(state));
    this.#place();
  }

  /** Ages and costs grow by themselves. */
  tick() {
    this.#place();
  }

  #place() {
    const first = Math.max(0, Math.floor(this.#rows.scrollTop / ROW) - SPARE);
    const last = Math.min(this.#pods.length, Math.ceil((this.#rows.scrollTop + this.#rows.clientHeight) / ROW) + SPARE);
    for (const [index, element] of this.#elements)
      if (index < first || index >= last) {
        element.remove();
        this.#elements.delete(index);
      }
    const names = new Map([...this.#state.nodes.values()].map((node) => [node.name, node]));
    const now = this.#state.now();
    for (let index = first; index < last; index++) {
      let element = this.#elements.get(index);
      if (element === undefined) {
        element = makeRow();
        element.style.transform = `translateY(${index * ROW}px)`;
        this.#elements.set(index, element);
        this.#space.append(element);
      }
      const pod = this.#pods[index];
      fill(element, pod, { index, now, node: names.get(pod.node), isCurrent: pod.uid === this.#current });
    }
    const currentAt = this.#pods.findIndex(({ uid }) => uid === this.#current);
    if (this.#elements.has(currentAt)) this.#grid.setAttribute("aria-activedescendant", `pod-${currentAt}`);
    else this.#grid.removeAttribute("aria-activedescendant");
  }

  #orderBy(name) {
    const { order } = this.#state;
    this.#state.order = { by: name, descending: order.by === name && !order.descending };
    this.draw();
  }

  #key(event) {
    if (event.target !== this.#grid) return;
    const page = Math.max(1, Math.floor(this.#rows.clientHeight / ROW) - 1);
    const at = this.#pods.findIndex(({ uid }) => uid === this.#current);
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at < 0 ? 0 : at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: this.#pods.length - 1,
    }[event.key];
    if (to !== undefined && this.#pods.length > 0) {
      event.preventDefault();
      this.#goTo(Math.max(0, Math.min(this.#pods.length - 1, to)));
    } else if ((event.key === "Enter" || event.key === " ") && at >= 0) {
      event.preventDefault();
      this.#onOpen(this.#current);
    }
  }

  #goTo(index) {
    this.#current = this.#pods[index].uid;
    const rows = this.#rows;
    if (index * ROW < rows.scrollTop) rows.scrollTop = index * ROW;
    else if ((index + 1) * ROW > rows.scrollTop + rows.clientHeight)
      rows.scrollTop = (index + 1) * ROW - rows.clientHeight;
    this.#place();
  }
}

function makeRow() {
  const cells = COLUMNS.map(([name]) => h("div", { class: `cell ${name}`, role: "gridcell" }));
  const row = h("div", { class: "pod", role: "row" }, ...cells);
  row.cells = Object.fromEntries(COLUMNS.map(([name], index) => [name, cells[index]]));
  row.cells.name.append(h("span", { class: "pod-name" }), h("span", { class: "pod-namespace" }));
  row.cells.node.append(h("span", { class: "pod-node" }), h("span", { class: "pod-host" }));
  return row;
}

function fill(row, pod, { index, now, node, isCurrent }) {
  const { cells } = row;
  row.setAttribute("aria-selected", String(isCurrent));
  setText(cells.age, age(now - pod.created));
  const cost = costOf(pod, node, now);
  setText(cells.cost, cost === undefined ? "" : money(cost));
  if (row.pod === pod && row.index === index) return;
  row.pod = pod;
  row.index = index;
  row.id = `pod-${index}`;
  row.dataset.uid = pod.uid;
  row.setAttribute("aria-rowindex", String(index + 2));
  const deleting = pod.status === "Terminating";
  cells.status.replaceChildren(...stateMark(pod.phase, { status: plain(pod.status || pod.phase), deleting }));
  setText(cells.name.firstChild, pod.name);
  setText(cells.name.lastChild, pod.namespace);
  setText(cells.node.firstChild, pod.node || "no node yet");
  setText(cells.node.lastChild, plain(pod.host));
  setText(cells.size, pod.instanceType === "" ? size(pod.size) : plain(pod.instanceType));
  setText(cells.restarts, pod.restarts === 0 ? "–" : String(pod.restarts));
}

function emptyWords(state) {
  const { hello, faults } = state;
  if (faults.pods !== undefined && state.pods.size === 0)
    return [
      h("p", {}, "Machines cannot be shown: the cluster does not let you see the pods."),
      hello?.namespace === undefined &&
        h("p", {}, "With rights in one namespace alone: ", h("code", {}, "vmlet ui -n NAMESPACE")),
    ].filter(Boolean);
  if (!state.synced) return [h("p", {}, "Reading the pods…")];
  if (state.pods.size > 0) return [h("p", {}, "No machine is like that.")];
  return [
    h("p", {}, "No machine runs on these nodes, and none waits for one."),
    h("p", {}, "A burst to look at: ", h("code", {}, "kubectl apply -f examples/burst.yaml")),
  ];
}
