/**
 * DER, the encoding of X.509 (ITU-T X.690): just what certificates and signing requests need. Each function returns one
 * element.
 */

const TAG = {
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  oid: 0x06,
  utf8String: 0x0c,
  utcTime: 0x17,
  generalizedTime: 0x18,
  sequence: 0x30,
  set: 0x31,
} as const;

function element(tag: number, content: Buffer): Buffer {
  return Buffer.concat([Buffer.from([tag]), encodeLength(content.length), content]);
}

function encodeLength(length: number): Buffer {
  if (length < 0x80) return Buffer.from([length]);
  const bytes: number[] = [];
  for (let rest = length; rest > 0; rest = Math.floor(rest / 256)) bytes.unshift(rest % 256);
  return Buffer.from([0x80 | bytes.length, ...bytes]);
}

export const sequence = (...parts: Buffer[]): Buffer => element(TAG.sequence, Buffer.concat(parts));
export const setOf = (...parts: Buffer[]): Buffer => element(TAG.set, Buffer.concat(parts));
export const octetString = (content: Buffer): Buffer => element(TAG.octetString, content);
export const utf8String = (text: string): Buffer => element(TAG.utf8String, Buffer.from(text, "utf8"));
export const boolean = (value: boolean): Buffer => element(0x01, Buffer.from([value ? 0xff : 0x00]));

/** A whole number of bytes. */
export const bitString = (content: Buffer): Buffer =>
  element(TAG.bitString, Buffer.concat([Buffer.from([0]), content]));

/** Named bits, of which `bits[0]` is the first; trailing zero bits are cut as DER wants. */
export function namedBits(bits: readonly number[]): Buffer {
  const highest = Math.max(...bits);
  const bytes = Buffer.alloc(Math.floor(highest / 8) + 1);
  for (const bit of bits) bytes[Math.floor(bit / 8)]! |= 0x80 >> (bit % 8);
  return element(TAG.bitString, Buffer.concat([Buffer.from([7 - (highest % 8)]), bytes]));
}

/** A non-negative number of any size, big endian. */
export function integer(value: Buffer | number): Buffer {
  let bytes = typeof value === "number" ? Buffer.from([value]) : value;
  while (bytes.length > 1 && bytes[0] === 0 && bytes[1]! < 0x80) bytes = bytes.subarray(1);
  return element(TAG.integer, bytes[0]! >= 0x80 ? Buffer.concat([Buffer.from([0]), bytes]) : bytes);
}

export function oid(dotted: string): Buffer {
  const [first = 0, second = 0, ...rest] = dotted.split(".").map(Number);
  const bytes = [first * 40 + second];
  for (const arc of rest) {
    const septets = [arc & 0x7f];
    for (let high = Math.floor(arc / 128); high > 0; high = Math.floor(high / 128))
      septets.unshift(0x80 | (high % 128));
    bytes.push(...septets);
  }
  return element(TAG.oid, Buffer.from(bytes));
}

/** RFC 5280 §4.1.2.5: UTCTime up to 2049, GeneralizedTime from 2050. */
export function time(ms: number): Buffer {
  const digits = new Date(ms).toISOString().replace(/[-:T]|\.\d{3}/g, "");
  return Number(digits.slice(0, 4)) < 2050
    ? element(TAG.utcTime, Buffer.from(digits.slice(2), "latin1"))
    : element(TAG.generalizedTime, Buffer.from(digits, "latin1"));
}

/** `[n] EXPLICIT` around elements. */
export const explicit = (n: number, ...parts: Buffer[]): Buffer => element(0xa0 | n, Buffer.concat(parts));

/** `[n] IMPLICIT` in place of a primitive's own tag. */
export const implicit = (n: number, content: Buffer): Buffer => element(0x80 | n, content);

export function pem(label: string, der: Buffer): string {
  const lines = der.toString("base64").match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join("\n")}\n-----END ${label}-----\n`;
}
