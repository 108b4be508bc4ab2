/**
 * Keys of the types that pod certificates have, each with the proof that its private half is held: a PKCS #10 request
 * without a name (kubelet: podcertificate, `generateKeyAndProof`).
 */
import { generateKeyPair, sign, type KeyObject } from "node:crypto";
import { promisify } from "node:util";
import * as der from "./der.ts";
import { privateKeyPem } from "./x509.ts";

const generate = promisify(generateKeyPair);

interface KeyType {
  make(): Promise<{ publicKey: KeyObject; privateKey: KeyObject }>;
  /** Undefined: the algorithm brings its own. */
  hash: string | undefined;
  algorithm: Buffer;
}

const NULL = Buffer.from([0x05, 0x00]);
const rsa = (modulusLength: number): KeyType => ({
  make: () => generate("rsa", { modulusLength }),
  hash: "sha256",
  algorithm: der.sequence(der.oid("1.2.840.113549.1.1.11"), NULL),
});
const ecdsa = (namedCurve: string, hash: string, oid: string): KeyType => ({
  make: () => generate("ec", { namedCurve }),
  hash,
  algorithm: der.sequence(der.oid(oid)),
});

const KEY_TYPES: Readonly<Record<string, KeyType>> = {
  RSA3072: rsa(3072),
  RSA4096: rsa(4096),
  ECDSAP256: ecdsa("P-256", "sha256", "1.2.840.10045.4.3.2"),
  ECDSAP384: ecdsa("P-384", "sha384", "1.2.840.10045.4.3.3"),
  ECDSAP521: ecdsa("P-521", "sha512", "1.2.840.10045.4.3.4"),
  ED25519: {
    make: () => generate("ed25519"),
    hash: undefined,
    algorithm: der.sequence(der.oid("1.3.101.112")),
  },
};

/**
 * A new key, made beside the event loop: the largest take seconds.
 *
 * @returns the private key as PKCS #8 in PEM, the request in DER
 * @throws RangeError when no key type has this name
 */
export async function createKeyWithProof(keyType: string): Promise<{ privateKey: string; proof: Buffer }> {
  const type = Object.hasOwn(KEY_TYPES, keyType) ? KEY_TYPES[keyType] : undefined;
  if (type === undefined)
    throw new RangeError(`unknown key type ${JSON.stringify(keyType)}; known are ${Object.keys(KEY_TYPES).join(", ")}`);
  const { publicKey, privateKey } = await type.make();
  const body = der.sequence(
    der.integer(0),
    der.sequence(),
    publicKey.export({ type: "spki", format: "der" }),
    der.explicit(0),
  );
  const proof = der.sequence(body, type.algorithm, der.bitString(sign(type.hash, body, privateKey)));
  return { privateKey: privateKeyPem(privateKey), proof };
}
