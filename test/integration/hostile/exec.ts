/** Sessions of `kubectl exec` by WebSocket, through the API server: honest ones, and raw ones for those that mean harm. */
import { once } from "node:events";
import WebSocket from "ws";

export interface Place {
  /** `http://HOST:PORT` of the API server. */
  url: string;
  token: string;
}

/** An open session; the caller does with its socket what it likes. @throws when the API server refuses it */
export async function openExec(
  { url, token }: Place,
  pod: { namespace: string; name: string; container?: string },
  command: readonly string[],
  options: { stdin?: boolean } = {},
): Promise<WebSocket> {
  const query = new URLSearchParams({ stdout: "true", stderr: "true", container: pod.container ?? "main" });
  for (const word of command) query.append("command", word);
  if (options.stdin) query.set("stdin", "true");
  const path = `/api/v1/namespaces/${pod.namespace}/pods/${pod.name}/exec?${query.toString()}`;
  const socket = new WebSocket(`${url.replace("http", "ws")}${path}`, ["v5.channel.k8s.io"], {
    headers: { authorization: `Bearer ${token}` },
    perMessageDeflate: false,
  });
  await once(socket, "open");
  return socket;
}

/** Runs a command to its end. @throws when it does not succeed */
export async function exec(place: Place, pod: { namespace: string; name: string }, command: readonly string[]) {
  const socket = await openExec(place, pod, command);
  let output = "";
  let status = "";
  socket.on("message", (data: Buffer) => {
    if (data[0] === 1) output += data.subarray(1).toString();
    if (data[0] === 3) status += data.subarray(1).toString();
  });
  await once(socket, "close");
  if ((JSON.parse(status) as { status: string }).status !== "Success") throw new Error(`exec failed: ${status}`);
  return output;
}
