import { connect } from "node:tls";

const TIMEOUT_MS = 3_000;

/**
 * Whether TLS is spoken at an address of http://, where a request gets no answer. Nothing is sent over the connection,
 * so whose certificate it is does not matter.
 *
 * @param url an address that a request was sent to; another scheme is never asked
 */
export async function speaksTls(url: string): Promise<boolean> {
  if (!URL.canParse(url)) return false;
  const { protocol, hostname, port } = new URL(url);
  if (protocol !== "http:") return false;
  const host = hostname.replace(/^\[|\]$/g, "");
  return await new Promise<boolean>((resolve) => {
    const socket = connect({ host, port: Number(port || 80), rejectUnauthorized: false, timeout: TIMEOUT_MS });
    const done = (answer: boolean) => () => {
      resolve(answer);
      socket.destroy();
    };
    socket.once("secureConnect", done(true)).once("error", done(false)).once("timeout", done(false));
  });
}
