/** The page: what the feed tells is drawn once a frame, however much it is. */
import { Chart, drawTotals } from "./chart.js";
import { follow } from "./connection.js";
import { Details } from "./details.js";
import { byId, h, setText, SHAPES } from "./dom.js";
import { plain } from "./format.js";
import { NodeCards } from "./nodes.js";
import { PodList } from "./pods.js";
import { PHASES, State } from "./state.js";

const state = new State();
const chart = new Chart(byId("chart"));
const pods = new PodList(byId("pods"), state, (uid) => details.open(uid));
const details = new Details(byId("details"), state, () => pods.focus());
const nodes = new NodeCards(byId("node-cards"), (name) => {
  state.node = name;
  drawLater();
});
const phases = ["", ...PHASES].map((phase) => {
  const figure = h("span", { class: "figure" });
  const button = h(
    "button",
    { type: "button", onclick: () => choosePhase(phase) },
    phase !== "" && h("span", { class: "mark", "data-phase": phase, "aria-hidden": "true" }, SHAPES[phase]),
    phase || "All",
    figure,
  );
  return { phase, button, figure };
});
byId("phases").append(...phases.map(({ button }) => button));

function choosePhase(phase) {
  state.phase = state.phase === phase ? "" : phase;
  drawLater();
}

let isDue = false;
function drawLater() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const sums = state.sums();
  drawTotals(byId("totals"), sums.phases);
  chart.draw(state.points, state.now());
  nodes.draw(state, sums.nodes);
  for (const { phase, button, figure } of phases) {
    button.setAttribute("aria-pressed", String(state.phase === phase));
    setText(figure, (phase === "" ? state.pods.size : sums.phases[phase]).toLocaleString("en"));
  }
  const only = byId("only-node");
  only.hidden = state.node === "";
  setText(only, `on ${state.node} ✕`);
  only.setAttribute("aria-label", `Show the machines of all nodes, not of ${state.node} alone`);
  pods.draw();
  details.draw();
  drawNotice();
  const { hello } = state;
  if (hello !== undefined) {
    setText(
      byId("where"),
      [hello.context, hello.namespace && `namespace ${hello.namespace}`, hello.server].filter(Boolean).join(" · "),
    );
    document.title = `${hello.context} – vmlet`;
  }
  document.documentElement.dataset.synced = String(state.synced);
}

function drawNotice() {
  const words = ["nodes", "pods"].flatMap((kind) =>
    state.faults[kind] === undefined ? [] : [h("p", {}, h("strong", {}, `${kind}: `), plain(state.faults[kind]))],
  );
  const notice = byId("notice");
  if (notice.dataset.refused !== undefined) return;
  const key = JSON.stringify(state.faults);
  if (notice.dataset.key === key) return;
  notice.dataset.key = key;
  notice.hidden = words.length === 0;
  notice.replaceChildren(...words);
}

function tell(link, message) {
  const element = byId("link");
  element.dataset.state = link;
  setText(element, { open: "Live", lost: "Not connected, trying again", refused: "Not connected" }[link]);
  if (link !== "refused") return;
  const notice = byId("notice");
  notice.dataset.refused = "";
  notice.hidden = false;
  notice.replaceChildren(h("p", {}, plain(message)));
}

byId("search").addEventListener("input", ({ target }) => {
  state.words = target.value;
  drawLater();
});
byId("only-node").addEventListener("click", () => {
  state.node = "";
  drawLater();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, .xterm")) return;
  event.preventDefault();
  byId("search").focus();
});
addEventListener("resize", drawLater);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLater);
// Ages, costs and the curve go on by themselves.
setInterval(drawLater, 1_000);

void follow((lines) => {
  for (const line of lines) state.take(line);
  drawLater();
}, tell);
