/** What keeps certificates and keys in files from being used, before a connection fails by them. */
import * as der from "./der.ts";
import { createPrivateKey, X509Certificate } from "node:crypto";
import { createSecureContext } from "node:tls";
import { toError } from "./errors.ts";

/** @returns what is wrong with a file of one or more certificates in PEM; undefined when they can be used */
export function certificatesFault(pem: string | Buffer): string | undefined {
  const text = pem.toString();
  if (!text.includes("-----BEGIN CERTIFICATE-----")) return "holds no certificate (PEM)";
  try {
    createSecureContext({ ca: text });
    // Reads the first; TLS itself reads any others.
    void new X509Certificate(text);
    return undefined;
  } catch (thrown) {
    return `holds no usable certificate: ${toError(thrown).message}`;
  }
}

/** @returns what is wrong with a certificate and its key, in PEM, with the file or field that it is about */
export function pairFault(
  pair: { cert: string | Buffer; key: string | Buffer },
  names: { cert: string; key: string },
): string | undefined {
  const fault = certificatesFault(pair.cert);
  if (fault !== undefined) return `${names.cert} ${fault}`;
  let key;
  try {
    key = createPrivateKey(pair.key);
  } catch (thrown) {
    const isEncrypted = /ENCRYPTED/.test(pair.key.toString());
    return `${names.key} holds no usable key (PEM${isEncrypted ? ", and not encrypted" : ""}): ${toError(thrown).message}`;
  }
  if (!new X509Certificate(pair.cert).checkPrivateKey(key))
    return `${names.key} is not the key of the certificate in ${names.cert}`;
  return undefined;
}

const BEGIN = "-----BEGIN CERTIFICATE-----";
const END = "-----END CERTIFICATE-----";

/**
 * The certificates of a text, each in PEM with lines of 64 characters. What stands between them, only for people, is
 * left out.
 */
export function certificatesIn(pem: string): string[] {
  return pem
    .split(BEGIN)
    .slice(1)
    .flatMap((part) => {
      const [body, ...rest] = part.split(END);
      return rest.length === 0 ? [] : [der.pem("CERTIFICATE", Buffer.from(body ?? "", "base64"))];
    });
}
