/**
 * A worker that sends requests with tokens that nobody knows, a different one each time, on connections that it opens again as
 * soon as they are closed. Posts what it got when it is told to stop.
 */
import { connect } from "node:tls";
import { parentPort, workerData } from "node:worker_threads";

export interface FloodResult {
  sent: number;
  /** How many answers had which status. */
  answers: Record<string, number>;
}

const { port, connections } = workerData as { port: number; connections: number };
/** Requests that are under way at a time on one connection. */
const WINDOW = 1000;
const result: FloodResult = { sent: 0, answers: {} };

for (let index = 0; index < connections; index++) flood();
// eslint-disable-next-line unicorn/require-post-message-target-origin -- a worker has none
parentPort!.on("message", () => parentPort!.postMessage(result));

function flood(): void {
  const socket = connect({ port, host: "127.0.0.1", rejectUnauthorized: false });
  const send = (count: number) => {
    let text = "";
    for (let index = 0; index < count; index++)
      text += `GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad-${++result.sent}\r\n\r\n`;
    socket.write(text);
  };
  let rest = "";
  socket.once("secureConnect", () => send(WINDOW));
  socket.on("error", () => {});
  socket.on("close", flood);
  socket.on("data", (chunk: Buffer) => {
    const lines = (rest + chunk.toString("latin1")).split("\r\n");
    rest = lines.pop()!;
    let answered = 0;
    for (const line of lines) {
      const status = /HTTP\/1\.1 (\d{3})/.exec(line)?.[1];
      if (status === undefined) continue;
      answered++;
      result.answers[status] = (result.answers[status] ?? 0) + 1;
    }
    if (answered > 0) send(answered);
  });
}
