import { connect, type ConnectionOptions } from "node:tls";

/** Of TLS 1.2, with keys of either kind; each has its MAC beside the encryption. */
export const CBC_CIPHERS =
  "ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA";

/** The cipher suite that a server of this machine agrees to, or `refused`. */
export function handshake(options: ConnectionOptions & { port: number }): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host: "127.0.0.1", rejectUnauthorized: false, ...options }, () => {
      resolve(socket.getCipher().name);
      socket.destroy();
    });
    socket.on("error", () => resolve("refused"));
  });
}
