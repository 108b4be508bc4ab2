/** What a TLS connection that failed means, in words with a cure: OpenSSL's are those of its source. */

const UNKNOWN_CA = [
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
];

/** What comes when the first bytes are no TLS; the numbers where Node has no name for it. */
const NO_TLS = ["ERR_SSL_WRONG_VERSION_NUMBER", "ERR_SSL_PACKET_LENGTH_TOO_LONG", "error:0A00010B:", "error:0A0000C6:"];

/** The settings that cure, as their user knows them. */
interface TlsSettings {
  /** Of the CA that certificates of the other end are checked by. */
  ca: string;
  /** Of the certificate and key that are shown to the other end. */
  pair: string;
}

/** @param error a connection's @returns undefined when it is not about TLS, or says by itself what to do */
export function tlsFault(error: unknown, settings: TlsSettings): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, message } = error as NodeJS.ErrnoException;
  if (code !== undefined && UNKNOWN_CA.includes(code)) {
    // Node's own advice is for who runs Node.
    const [what] = message.split(";");
    return `${what}: no CA that is known here signed the other end's certificate; set ${settings.ca} to the one that did`;
  }
  if (NO_TLS.some((sign) => code === sign || message.includes(sign)))
    return "the other end does not speak TLS; its address may have to begin with http://";
  if (code === "ERR_OSSL_X509_KEY_VALUES_MISMATCH" || message.includes("key values mismatch"))
    return `${settings.pair} are not a certificate and its own key`;
  return undefined;
}
