/**
 * Keys for guests that are reached at their VMs' addresses, by TLS with certificates on both sides. Nothing is stored:
 * all that a VM's keys are made of is a secret that the agents of a scope share, and the VM's birth. Each VM has an
 * authority of its own, which only agents can be: of a guest's key nothing follows about another's.
 */
import { createECDH, createHash, createPrivateKey, createPublicKey, hkdfSync } from "node:crypto";
import type { Duplex } from "node:stream";
import { connect, type ConnectionOptions, type TLSSocket } from "node:tls";
import {
  type CallOptions,
  ConfigError,
  createCertificate,
  privateKeyPem,
  ProviderError,
  toError,
} from "../../src/provider/kit/index.ts";
import type { Vm, VmCloud, VmRequest } from "./cloud.ts";
import { BIRTH_LABEL, KEYS_LABEL } from "./labels.ts";
import { opened } from "./opened.ts";

/** In the VM, from its first moment on. */
export const GUEST_KEYS = "/etc/vmlet/keys";
/** Where a guest with keys listens. */
export const GUEST_PORT = 10_443;

/** Under which names a guest finds them there. */
export const KEY_FILES = { certificate: "guest.crt", clientCa: "client-ca.crt", key: "guest.key" } as const;

const LEAST_CHARACTERS = 32;
/** Of the order of P-256's group. */
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;
/** More than the order has, so that no key is likelier than another. */
const SCALAR_BYTES = 48;
const KEY_BYTES = 32;
/** A VM that has just booted may have any time. */
const VALID = { notBeforeMs: 0, notAfterMs: Date.UTC(9999, 11, 31) };

interface Secret {
  readonly name: string;
  readonly text: string;
}

export class GuestKeys {
  readonly #secrets: readonly Secret[];
  readonly #scope: string;

  /**
   * @param text a secret of at least 32 characters a line: new VMs have keys of the first, older ones are reached
   * @param field that the text is of, for its errors
   * @throws ConfigError
   */
  constructor(text: string, { scope, field }: { scope: string; field: string }) {
    this.#scope = scope;
    const lines = text.split("\n").map((line) => line.trim());
    this.#secrets = lines.filter((line) => line !== "").map((line) => ({ name: nameOf(line), text: line }));
    if (this.#secrets.length === 0)
      throw new ConfigError(`${field} is empty: put a secret in it (openssl rand -hex 32)`);
    if (this.#secrets.some((secret) => secret.text.length < LEAST_CHARACTERS))
      throw new ConfigError(
        `${field} has a secret of fewer than ${LEAST_CHARACTERS} characters: make one with openssl rand -hex 32`,
      );
  }

  /** Of the secret that new VMs have their keys of: it tells nothing about it. */
  get newest(): string {
    return this.#secrets[0]!.name;
  }

  /** The order with what its guest has to know, and who dials it. */
  order(request: VmRequest): VmRequest {
    const secret = this.#secrets[0]!;
    const { authority, certificate, key } = this.#of(secret, request.labels, "guest");
    return {
      ...request,
      labels: { ...request.labels, [KEYS_LABEL]: secret.name },
      keys: { certificate, key, clientCa: authority },
    };
  }

  /** @throws ProviderError unavailable when its keys are of a secret that is not there (any more) */
  connectionTo({ name, labels }: Pick<Vm, "name" | "labels">): ConnectionOptions {
    const secret = this.#secrets.find((each) => each.name === labels[KEYS_LABEL]);
    if (secret === undefined)
      throw new ProviderError(
        "unavailable",
        `the guest of ${name} has keys of secret ${labels[KEYS_LABEL] ?? "none"}, which is not among the guestKeysFile's: keep those of VMs that there are`,
      );
    const { authority: ca, certificate: cert, key } = this.#of(secret, labels, "agent");
    // Who has a certificate of this authority for a server is that VM, whatever it is called.
    return { ca, cert, key, minVersion: "TLSv1.3", checkServerIdentity: () => undefined };
  }

  #of({ text }: Secret, { [BIRTH_LABEL]: birth }: Vm["labels"], role: "guest" | "agent") {
    // Two without one would have the same keys.
    if (birth === undefined) throw new ProviderError("unavailable", `the cloud shows no label ${BIRTH_LABEL} of a VM`);
    const keysOf = (what: string) => keyPair(hkdfSync("sha256", text, "vmlet", purpose(what), SCALAR_BYTES));
    const purpose = (what: string) => JSON.stringify([what, this.#scope, birth]);
    const [authorityKeys, keys] = [keysOf("authority"), keysOf(role)];
    const subject = { commonName: "vmlet authority of one VM" };
    const usages = role === "guest" ? (["serverAuth"] as const) : (["clientAuth"] as const);
    return {
      authority: createCertificate({ ...VALID, subject, keys: authorityKeys, isCa: true }),
      certificate: createCertificate({
        ...VALID,
        ...{ subject: { commonName: `vmlet ${role}` }, keys, usages },
        issuer: { subject, privateKey: authorityKeys.privateKey },
      }),
      key: privateKeyPem(keys.privateKey),
    };
  }
}

/** By the names of `KEY_FILES`. */
export function keyFilesOf({ certificate, key, clientCa }: NonNullable<VmRequest["keys"]>): Record<string, string> {
  return { [KEY_FILES.certificate]: certificate, [KEY_FILES.key]: key, [KEY_FILES.clientCa]: clientCa };
}

/** Without keys nobody knows who answers in place of a guest that has some: it is told nothing. */
export function withoutGuestKeys(cloud: VmCloud): VmCloud {
  const dial: VmCloud["dial"] = async (vm, options) => {
    if (vm.labels[KEYS_LABEL] === undefined) return await cloud.dial(vm, options);
    throw new ProviderError(
      "unavailable",
      `the guest of ${vm.name} has keys, and there is no guestKeysFile here: set it`,
    );
  };
  return replacing(cloud, { dial });
}

/** A cloud whose guests have keys: what is dialled is the guest of that very VM, and it serves nobody else. */
export function withGuestKeys(cloud: VmCloud, keys: GuestKeys): VmCloud {
  const own: Partial<VmCloud> = {
    createVm: (request, options) => cloud.createVm(keys.order(request), options),
    async dial(vm, options) {
      // Of one that was ordered without keys the cloud's own way is the only one.
      if (vm.labels[KEYS_LABEL] === undefined) return await cloud.dial(vm, options);
      const connection = keys.connectionTo(vm);
      return await secure(await cloud.dial(vm, options), connection, vm.name, options);
    },
    // Those that wait with keys of an older secret are replaced.
    version: async (options) => JSON.stringify([(await cloud.version?.(options)) ?? "", keys.newest]),
  };
  return replacing(cloud, own);
}

function replacing(cloud: VmCloud, own: Partial<VmCloud>): VmCloud {
  return new Proxy(cloud, {
    get: (target, key) => {
      const value: unknown = Reflect.get(Object.hasOwn(own, key) ? own : target, key);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}

/** @throws ProviderError unavailable when either side does not take the other's certificate */
async function secure(
  socket: Duplex,
  connection: ConnectionOptions,
  vm: string,
  { signal }: CallOptions,
): Promise<TLSSocket> {
  const secured = connect({ ...connection, socket });
  try {
    await opened(secured, "secureConnect", { signal });
  } catch (thrown) {
    socket.destroy();
    signal.throwIfAborted();
    const why = toError(thrown).message;
    throw new ProviderError("unavailable", `the guest of ${vm} does not show that it is this VM's: ${why}`, {
      cause: thrown,
    });
  }
  return secured;
}

/** @param bytes 48 of them, uniformly random @returns a pair of P-256 */
function keyPair(bytes: ArrayBuffer) {
  const scalar = (BigInt(`0x${Buffer.from(bytes).toString("hex")}`) % (ORDER - 1n)) + 1n;
  const secret = Buffer.from(scalar.toString(16).padStart(2 * KEY_BYTES, "0"), "hex");
  const curve = createECDH("prime256v1");
  curve.setPrivateKey(secret);
  const point = curve.getPublicKey();
  const part = (from: number) => point.subarray(from, from + KEY_BYTES).toString("base64url");
  const key = { kty: "EC", crv: "P-256", d: secret.toString("base64url"), x: part(1), y: part(1 + KEY_BYTES) };
  const privateKey = createPrivateKey({ key, format: "jwk" });
  return { privateKey, publicKey: createPublicKey(privateKey) };
}

const nameOf = (secret: string) => createHash("sha256").update(`vmlet-keys ${secret}`).digest("hex").slice(0, 12);
