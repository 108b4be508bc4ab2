/** X.509 certificates and PKCS #10 signing requests with ECDSA P-256 keys, which node:crypto can read but not make. */
import { generateKeyPairSync, randomBytes, sign, type KeyObject } from "node:crypto";
import { isIPv4, isIPv6 } from "node:net";
import * as der from "./der.ts";

export interface Subject {
  commonName: string;
  organizations?: readonly string[];
}

export interface SubjectAltNames {
  dnsNames: readonly string[];
  ipAddresses: readonly string[];
}

export interface KeyPair {
  publicKey: KeyObject;
  privateKey: KeyObject;
}

const OID = {
  commonName: "2.5.4.3",
  organization: "2.5.4.10",
  basicConstraints: "2.5.29.19",
  keyUsage: "2.5.29.15",
  extendedKeyUsage: "2.5.29.37",
  subjectAltName: "2.5.29.17",
  serverAuth: "1.3.6.1.5.5.7.3.1",
  clientAuth: "1.3.6.1.5.5.7.3.2",
  ecdsaWithSha256: "1.2.840.10045.4.3.2",
  extensionRequest: "1.2.840.113549.1.9.14",
} as const;

const KEY_USAGE = { digitalSignature: 0, certificateSign: 5, crlSign: 6 } as const;
const SIGNATURE_ALGORITHM = der.sequence(der.oid(OID.ecdsaWithSha256));

export function generateKeyPair(): KeyPair {
  return generateKeyPairSync("ec", { namedCurve: "P-256" });
}

export function privateKeyPem(key: KeyObject): string {
  return key.export({ type: "pkcs8", format: "pem" }) as string;
}

/**
 * A certificate in PEM, signed by `issuer` or, without one, by its own key.
 *
 * @param options.usages extended key usages; none for a CA
 * @throws RangeError for an IP address that is none
 */
export function createCertificate(options: {
  subject: Subject;
  keys: KeyPair;
  notBeforeMs: number;
  notAfterMs: number;
  altNames?: SubjectAltNames | undefined;
  isCa?: boolean | undefined;
  usages?: readonly ("serverAuth" | "clientAuth")[] | undefined;
  issuer?: { subject: Subject; privateKey: KeyObject } | undefined;
}): string {
  const { subject, keys, issuer } = options;
  const extensions = [
    extension(OID.basicConstraints, true, options.isCa ? der.sequence(der.boolean(true)) : der.sequence()),
    extension(
      OID.keyUsage,
      true,
      der.namedBits(options.isCa ? [KEY_USAGE.certificateSign, KEY_USAGE.crlSign] : [KEY_USAGE.digitalSignature]),
    ),
  ];
  if (options.usages?.length) {
    extensions.push(
      extension(OID.extendedKeyUsage, false, der.sequence(...options.usages.map((usage) => der.oid(OID[usage])))),
    );
  }
  if (options.altNames) extensions.push(altNameExtension(options.altNames));
  const serial = randomBytes(16);
  serial[0]! &= 0x7f;
  const body = der.sequence(
    der.explicit(0, der.integer(2)),
    der.integer(serial),
    SIGNATURE_ALGORITHM,
    name(issuer?.subject ?? subject),
    der.sequence(der.time(options.notBeforeMs), der.time(options.notAfterMs)),
    name(subject),
    publicKeyInfo(keys.publicKey),
    der.explicit(3, der.sequence(...extensions)),
  );
  return der.pem("CERTIFICATE", signed(body, issuer?.privateKey ?? keys.privateKey));
}

/** A PKCS #10 request in PEM. @throws RangeError for an IP address that is none */
export function createSigningRequest(options: {
  subject: Subject;
  keys: KeyPair;
  altNames?: SubjectAltNames | undefined;
}): string {
  const attributes = options.altNames
    ? [der.sequence(der.oid(OID.extensionRequest), der.setOf(der.sequence(altNameExtension(options.altNames))))]
    : [];
  const body = der.sequence(
    der.integer(0),
    name(options.subject),
    publicKeyInfo(options.keys.publicKey),
    der.explicit(0, ...attributes),
  );
  return der.pem("CERTIFICATE REQUEST", signed(body, options.keys.privateKey));
}

function signed(body: Buffer, key: KeyObject): Buffer {
  return der.sequence(body, SIGNATURE_ALGORITHM, der.bitString(sign("sha256", body, key)));
}

/** Organizations first, as Go writes names. */
function name(subject: Subject): Buffer {
  const attribute = (type: string, value: string) => der.setOf(der.sequence(der.oid(type), der.utf8String(value)));
  return der.sequence(
    ...(subject.organizations ?? []).map((organization) => attribute(OID.organization, organization)),
    attribute(OID.commonName, subject.commonName),
  );
}

function publicKeyInfo(key: KeyObject): Buffer {
  return key.export({ type: "spki", format: "der" });
}

function extension(id: string, critical: boolean, value: Buffer): Buffer {
  return der.sequence(der.oid(id), ...(critical ? [der.boolean(true)] : []), der.octetString(value));
}

function altNameExtension(names: SubjectAltNames): Buffer {
  return extension(
    OID.subjectAltName,
    false,
    der.sequence(
      ...names.dnsNames.map((dnsName) => der.implicit(2, Buffer.from(dnsName, "latin1"))),
      ...names.ipAddresses.map((address) => der.implicit(7, ipBytes(address))),
    ),
  );
}

/**
 * 4 or 16 bytes. @throws RangeError when `address` is not an IP address
 * @internal
 */
export function ipBytes(address: string): Buffer {
  if (isIPv4(address)) return Buffer.from(address.split(".").map(Number));
  if (!isIPv6(address) || address.includes("%"))
    throw new RangeError(`${JSON.stringify(address)} is not an IP address`);
  // The URL parser writes the last 32 bits in hexadecimal and compresses zeros in one way.
  const [head = "", tail] = new URL(`http://[${address}]`).hostname.slice(1, -1).split("::");
  const groups = (text: string | undefined) => (text ? text.split(":").map((group) => Number.parseInt(group, 16)) : []);
  const first = groups(head);
  const last = groups(tail);
  const bytes = Buffer.alloc(16);
  first.forEach((group, index) => bytes.writeUInt16BE(group, 2 * index));
  last.forEach((group, index) => bytes.writeUInt16BE(group, 16 - 2 * (last.length - index)));
  return bytes;
}
