/** A shell in a container. The only place where what a container writes means more than text. */
import { FitAddon } from "./xterm-fit.js";
import { Terminal } from "./xterm.js";
import { openTerminal } from "./connection.js";
import { plain } from "./format.js";
import { h } from "./dom.js";

const CHANNEL = { stdin: 0, stdout: 1, stderr: 2, error: 3, resize: 4 };
/** What the terminal may have to draw before nothing more is asked for, in bytes. */
const MAX_BEHIND = 1 << 20;

keepStylesOutOfMarkup();

/** Resolves when the shell has ended or the signal aborts. */
export async function runTerminal(place, query, { signal, onState }) {
  if (document.querySelector('link[href="/xterm.css"]') === null)
    document.head.append(h("link", { rel: "stylesheet", href: "/xterm.css" }));
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const terminal = new Terminal({
    fontFamily: color("--mono"),
    fontSize: 13,
    scrollback: 5_000,
    screenReaderMode: true,
    // A container's output must lead nowhere, however it is clicked.
    linkHandler: { activate() {} },
    theme: {
      background: color("--terminal"),
      foreground: color("--terminal-text"),
      cursor: color("--terminal-text"),
      selectionBackground: color("--terminal-selection"),
    },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  fit.fit();
  const socket = openTerminal(query);
  socket.binaryType = "arraybuffer";
  const encoder = new TextEncoder();
  const send = (channel, text) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(new Uint8Array([channel, ...encoder.encode(text)]));
  };
  const sendSize = () => send(CHANNEL.resize, JSON.stringify({ Width: terminal.cols, Height: terminal.rows }));
  terminal.onData((text) => send(CHANNEL.stdin, text));
  terminal.onResize(sendSize);
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(place);
  let outcome = "";
  let behind = 0;
  await new Promise((resolve) => {
    signal.addEventListener("abort", resolve);
    socket.addEventListener("open", () => {
      sendSize();
      onState("connected");
      terminal.focus();
    });
    socket.addEventListener("message", ({ data }) => {
      const bytes = new Uint8Array(data);
      if (bytes[0] === CHANNEL.error) outcome = describe(new TextDecoder().decode(bytes.subarray(1)));
      else if (bytes[0] === CHANNEL.stdout || bytes[0] === CHANNEL.stderr) {
        // A flood that cannot be drawn is cut, not kept.
        if (behind > MAX_BEHIND) return;
        behind += bytes.length;
        terminal.write(bytes.subarray(1), () => (behind -= bytes.length));
      }
    });
    socket.addEventListener("close", () => {
      onState(outcome === "" ? "The connection has ended" : outcome);
      resolve();
    });
  });
  socket.close();
  observer.disconnect();
  terminal.options.disableStdin = true;
  if (signal.aborted) terminal.dispose();
}

/** The Status by which a command ends. */
function describe(text) {
  try {
    const { status, message } = JSON.parse(text);
    return status === "Success"
      ? "The shell has ended"
      : plain(String(message ?? "The shell has failed")).slice(0, 500);
  } catch {
    return "The shell has ended";
  }
}

/**
 * xterm writes style elements and style attributes, which our policy refuses because markup could bring them too. What
 * a script sets by the CSS object model is allowed and looks the same.
 */
function keepStylesOutOfMarkup() {
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    // An empty style element would be refused too: something else that is not shown takes its place.
    const element = create(name === "style" ? "template" : name, options);
    if (name === "style") adopt(element);
    return element;
  };
  const set = Element.prototype.setAttribute;
  HTMLElement.prototype.setAttribute = function setAttribute(attribute, value) {
    if (attribute === "style") this.style.cssText = value;
    else set.call(this, attribute, value);
  };
}

function adopt(element) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", {
    get: () => "",
    set: (text) => {
      sheet.replaceSync(text);
    },
  });
  Object.defineProperty(element, "sheet", { value: sheet });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
}
