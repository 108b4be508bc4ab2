/** One machine: its state, containers, events, logs, and a terminal. */
import { ask, Refused } from "./connection.js";
import { age, clockTime, costOf, cpu, memory, money, plain } from "./format.js";
import { h, setText, stateMark } from "./dom.js";

const TABS = ["Overview", "Events", "Log", "Terminal"];
const EVENTS_EVERY_MS = 5_000;
/** What of a log is kept, in characters, and how much of a line. */
const LOG_KEPT = 1_000_000;
const LONGEST_LINE = 4_000;

export class Details {
  #place;
  #state;
  #onClose;
  #uid = "";
  #tab = "Overview";
  #container = "";
  /** Ends what the tab has begun: requests, timers, the terminal. */
  #end = new AbortController();
  #body = h("div", { class: "tab-body", role: "tabpanel", tabindex: "0" });
  #drawn = "";

  constructor(place, state, onClose) {
    this.#place = place;
    this.#state = state;
    this.#onClose = onClose;
    place.addEventListener("keydown", (event) => {
      // In a terminal, Escape is the program's.
      if (event.key === "Escape" && !event.target.closest?.(".xterm")) this.close();
    });
  }

  get isOpen() {
    return this.#uid !== "";
  }

  open(uid) {
    const pod = this.#state.pods.get(uid);
    if (pod === undefined) return;
    this.#uid = uid;
    this.#container = (pod.containers.find(({ state }) => state === "running") ?? pod.containers[0])?.name ?? "";
    this.#place.hidden = false;
    document.body.classList.add("with-details");
    this.#frame(pod);
    this.#place.querySelector("#details-title").focus();
  }

  close() {
    this.#end.abort();
    this.#uid = "";
    this.#place.hidden = true;
    this.#place.replaceChildren();
    document.body.classList.remove("with-details");
    this.#onClose();
  }

  /** The pod may have changed. */
  draw() {
    if (this.#uid === "") return;
    const pod = this.#state.pods.get(this.#uid);
    const head = this.#place.querySelector(".details-state");
    if (pod === undefined) {
      head.replaceChildren(h("span", { class: "status" }, "This machine is gone"));
      return;
    }
    const key = JSON.stringify(pod);
    if (key !== this.#drawn) {
      this.#drawn = key;
      const deleting = pod.status === "Terminating";
      head.replaceChildren(...stateMark(pod.phase, { status: plain(pod.status || pod.phase), deleting }));
    }
    if (this.#tab === "Overview") this.#overview(pod);
  }

  #frame(pod) {
    this.#drawn = "";
    this.#place.replaceChildren(
      h(
        "div",
        { class: "details-head" },
        h("h2", { id: "details-title", tabindex: "-1" }, pod.name),
        h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "✕"),
        h("p", { class: "details-where" }, `namespace ${pod.namespace}`),
        h("p", { class: "details-state", role: "status" }),
      ),
      h(
        "div",
        { class: "tabs", role: "tablist", onkeydown: (event) => this.#tabKey(event) },
        ...TABS.map((name) =>
          h("button", { type: "button", role: "tab", id: `tab-${name}`, onclick: () => this.#show(name) }, name),
        ),
      ),
      this.#body,
    );
    this.#show(this.#tab);
    this.draw();
  }

  #tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const name = TABS[(TABS.indexOf(this.#tab) + step + TABS.length) % TABS.length];
    this.#show(name);
    this.#place.querySelector(`#tab-${name}`).focus();
  }

  #show(name) {
    this.#end.abort();
    this.#end = new AbortController();
    this.#tab = name;
    for (const tab of this.#place.querySelectorAll("[role=tab]")) {
      const isIt = tab.textContent === name;
      tab.setAttribute("aria-selected", String(isIt));
      tab.tabIndex = isIt ? 0 : -1;
    }
    this.#body.setAttribute("aria-labelledby", `tab-${name}`);
    this.#body.replaceChildren();
    this.#body.dataset.tab = name;
    const pod = this.#state.pods.get(this.#uid);
    if (pod === undefined) return;
    if (name === "Overview") this.#overview(pod);
    else if (name === "Events") void this.#events(pod, this.#end.signal);
    else if (name === "Log") void this.#log(pod, this.#end.signal);
    else void this.#terminal(pod, this.#end.signal);
  }

  #overview(pod) {
    const { now, node } = { now: this.#state.now(), node: this.#state.nodeOf(pod) };
    const cost = costOf(pod, node, now);
    const facts = [
      ["Machine", plain(pod.machine) || "none yet"],
      ["Host", plain(pod.host)],
      ["Node", pod.node || "none yet"],
      [
        "Size",
        [plain(pod.instanceType), `${cpu(pod.size.cpuMillis)} cpu`, memory(pod.size.memoryBytes)]
          .filter(Boolean)
          .join(" · "),
      ],
      ["Address", pod.ip],
      ["Ready", pod.ready],
      ["Restarts", String(pod.restarts)],
      ["Age", age(now - pod.created)],
      ["Ran for", pod.started === 0 ? "" : age((pod.ended || now) - pod.started)],
      ["Cost so far", cost === undefined ? "" : money(cost)],
    ].filter(([, value]) => value !== "");
    const key = JSON.stringify([pod.message, pod.containers, facts.map(([name]) => name)]);
    if (this.#body.dataset.key !== key || this.#body.childElementCount === 0) {
      this.#body.dataset.key = key;
      this.#body.replaceChildren(
        ...[
          pod.message !== "" && h("p", { class: "message" }, plain(pod.message)),
          h("dl", {}, ...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
          h("h3", {}, "Containers"),
          h("ul", { class: "containers" }, ...pod.containers.map(containerItem)),
        ].filter(Boolean),
      );
      return;
    }
    const values = this.#body.querySelectorAll("dd");
    for (const [index, [, value]] of facts.entries()) setText(values[index], value);
  }

  async #events(pod, signal) {
    while (!signal.aborted) {
      try {
        const rows = await (await ask("/api/events", { uid: pod.uid, namespace: pod.namespace }, signal)).json();
        this.#body.replaceChildren(
          rows.length === 0
            ? h("p", { class: "empty" }, "No events: the cluster keeps them for an hour.")
            : h("ul", { class: "events" }, ...rows.map((row) => eventItem(row, this.#state.now()))),
        );
      } catch (thrown) {
        if (!signal.aborted) this.#body.replaceChildren(failure(thrown));
      }
      await new Promise((resolve) => {
        setTimeout(resolve, EVENTS_EVERY_MS);
      });
    }
  }

  #containerChoice(pod, more = []) {
    const select = h(
      "select",
      {
        "aria-label": "Container",
        onchange: () => {
          this.#container = select.value;
          this.#show(this.#tab);
        },
      },
      ...pod.containers.map(({ name }) => h("option", { value: name, selected: name === this.#container }, name)),
    );
    return h("div", { class: "choice" }, select, ...more);
  }

  async #log(pod, signal, previous = false) {
    const box = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log" });
    const note = h("span", { class: "note", role: "status" });
    const before = h("input", {
      type: "checkbox",
      checked: previous,
      onchange: () => this.#showLog(pod, before.checked),
    });
    this.#body.replaceChildren(
      this.#containerChoice(pod, [h("label", {}, before, " before the last restart"), note]),
      box,
    );
    const log = new LogText(box);
    try {
      const query = { namespace: pod.namespace, pod: pod.name, container: this.#container, previous: String(previous) };
      const { body } = await ask("/api/log", query, signal);
      setText(note, previous ? "" : "following");
      const reader = body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || signal.aborted) break;
        log.add(value);
        // No faster than it can be shown: what is not read here is not taken from the container's log.
        await new Promise((resolve) => {
          requestAnimationFrame(resolve);
        });
      }
      setText(note, log.isEmpty ? "nothing was written" : "ended");
    } catch (thrown) {
      if (!signal.aborted) box.replaceWith(failure(thrown));
    }
  }

  #showLog(pod, previous) {
    this.#end.abort();
    this.#end = new AbortController();
    void this.#log(pod, this.#end.signal, previous);
  }

  async #terminal(pod, signal) {
    const place = h("div", { class: "terminal" });
    const note = h("span", { class: "note", role: "status" }, "Opening…");
    this.#body.replaceChildren(this.#containerChoice(pod, [note]), place);
    const { runTerminal } = await import("./terminal.js");
    if (signal.aborted) return;
    const query = { namespace: pod.namespace, pod: pod.name, container: this.#container };
    await runTerminal(place, query, { signal, onState: (text) => setText(note, text) });
  }
}

/** The end of a log, as text. */
class LogText {
  #box;
  #text = "";
  constructor(box) {
    this.#box = box;
  }

  get isEmpty() {
    return this.#text === "";
  }

  add(piece) {
    const lines = (this.#text + plain(piece)).split("\n");
    let text = lines.map((line) => (line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)}…` : line)).join("\n");
    if (text.length > LOG_KEPT) text = text.slice(text.indexOf("\n", text.length - LOG_KEPT * 0.8) + 1);
    this.#text = text;
    const box = this.#box;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.textContent = text;
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}

function containerItem({ name, state, ready, restarts, image, reason }) {
  const phase =
    state === "running" ? "Running" : state === "waiting" ? "Pending" : reason.endsWith("(0)") ? "Succeeded" : "Failed";
  const words = [
    state === "running" && ready ? "running, ready" : state,
    plain(reason),
    restarts > 0 && `${restarts} restarts`,
  ];
  return h(
    "li",
    {},
    h("span", { class: "container-name" }, ...stateMark(phase, { status: name })),
    h("span", { class: "container-state" }, words.filter(Boolean).join(" · ")),
    h("span", { class: "container-image" }, plain(image)),
  );
}

function eventItem({ type, reason, message, count, at, from }, now) {
  return h(
    "li",
    { "data-type": type },
    h(
      "span",
      { class: "event-head" },
      h("span", { class: "mark", "aria-hidden": "true" }, type === "Warning" ? "▲" : "·"),
      h("strong", {}, plain(reason)),
      h("time", { title: clockTime(at) }, at === 0 ? "" : `${age(now - at)} ago${count > 1 ? `, ${count} times` : ""}`),
    ),
    h("span", { class: "event-message" }, plain(message)),
    h("span", { class: "event-from" }, plain(from)),
  );
}

function failure(thrown) {
  return h(
    "p",
    { class: "failure" },
    thrown instanceof Refused ? plain(thrown.message) : "The page's server does not answer.",
  );
}
