/**
 * The way to our server. The token comes in the address's fragment, is kept for this tab and this origin, and goes into
 * a header of each request; it leaves the address at once, so that it is in no history.
 */
const KEY = "vmlet-token";
/** Between two tries, in milliseconds. */
const RETRY = { first: 500, longest: 10_000 };
/** The server says something every ten seconds. */
const SILENCE_MS = 25_000;

const fragment = new URLSearchParams(location.hash.slice(1)).get("token");
if (fragment) {
  sessionStorage.setItem(KEY, fragment);
  history.replaceState(undefined, "", location.pathname);
}
const token = () => sessionStorage.getItem(KEY) ?? "";

/** What the server refused, in its words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @throws Refused */
export async function ask(path, query = {}, signal) {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`, {
    headers: { authorization: `Bearer ${token()}` },
    cache: "no-store",
    signal,
  });
  if (!response.ok) throw new Refused(response.status, await response.text());
  return response;
}

export function openTerminal(query) {
  const url = new URL(`/api/terminal?${new URLSearchParams(query)}`, location.href);
  url.protocol = "ws:";
  return new WebSocket(url, ["terminal.vmlet.dev", `token.vmlet.dev.${token()}`]);
}

/**
 * Follows the feed for ever, again after each end.
 *
 * @param {(lines: object[]) => void} onLines
 * @param {(state: "open" | "lost" | "refused", message?: string) => void} onState
 */
export async function follow(onLines, onState) {
  let pauseMs = RETRY.first;
  for (;;) {
    try {
      const limit = new AbortController();
      const { body } = await ask("/api/feed", {}, limit.signal);
      onState("open");
      pauseMs = RETRY.first;
      await readLines(body, limit, onLines);
      onState("lost");
    } catch (thrown) {
      if (thrown instanceof Refused && thrown.status === 401) {
        onState("refused", thrown.message);
        return;
      }
      onState("lost", thrown instanceof Refused ? thrown.message : undefined);
    }
    await new Promise((resolve) => {
      setTimeout(resolve, pauseMs);
    });
    pauseMs = Math.min(pauseMs * 2, RETRY.longest);
  }
}

async function readLines(body, limit, onLines) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const timer = setTimeout(() => limit.abort(), SILENCE_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (lines.length > 0) onLines(lines.map((line) => JSON.parse(line)));
  }
}
