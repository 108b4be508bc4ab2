import { createPublicKey, X509Certificate, type KeyObject } from "node:crypto";
import { describe, expect, test } from "vitest";
import { NodeCertificate, renewalTime } from "../../../src/kube/certificates.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { silentLogger as logger } from "../../../src/telemetry/logger.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { createCertificate, generateKeyPair } from "../../../src/util/x509.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const HOUR_MS = 3_600_000;
const ca = { subject: { commonName: "ca" }, privateKey: generateKeyPair().privateKey };

/** Signs what is asked for, for an hour, unless it is down or nobody approves. */
class Signer implements Kube {
  readonly requests: Record<string, unknown>[] = [];
  readonly #clock: VirtualClock;
  isDown = false;
  isApproved = true;

  constructor(clock: VirtualClock) {
    this.#clock = clock;
  }

  request<T>({ method, body }: KubeRequest): Promise<T> {
    if (this.isDown) return Promise.reject(new KubeApiError("unreachable", { status: 0, reason: "Timeout" }));
    if (method === "POST") {
      this.requests.push(body as Record<string, unknown>);
      return Promise.resolve({ metadata: { name: `csr-${this.requests.length}` } } as T);
    }
    const { spec } = this.requests.at(-1) as { spec: { request: string } };
    const certificate = Buffer.from(this.#sign(spec.request)).toString("base64");
    return Promise.resolve({ status: this.isApproved ? { certificate } : {} } as T);
  }

  #sign(request: string): string {
    const now = this.#clock.now();
    const publicKey = publicKeyOf(Buffer.from(request, "base64"));
    return createCertificate({
      subject: { commonName: "system:node:n", organizations: ["system:nodes"] },
      keys: { publicKey, privateKey: ca.privateKey },
      issuer: ca,
      usages: ["clientAuth"],
      notBeforeMs: now,
      notAfterMs: now + HOUR_MS,
    });
  }

  watch(): never {
    throw new Error("not used");
  }
}

/** The key within a PKCS #10 request in PEM: what follows the one header that all P-256 keys have. */
function publicKeyOf(pem: Buffer): KeyObject {
  const der = Buffer.from(pem.toString().replaceAll(/-----[^-]+-----|\s/g, ""), "base64");
  const header = Buffer.from("3059301306072a8648ce3d020106082a8648ce3d030107034200", "hex");
  const start = der.indexOf(header);
  return createPublicKey({ key: der.subarray(start, start + header.length + 65), format: "der", type: "spki" });
}

interface World {
  clock: VirtualClock;
  signer: Signer;
  certificate: NodeCertificate;
  metrics: ReturnType<typeof unusedMetrics>;
}

/** A node that has its first certificate, and runs. `random` chooses when in 70 to 90 % of its life the next is due. */
async function running(random: number, look: (world: World) => Promise<void>): Promise<void> {
  const clock = new VirtualClock();
  const signer = new Signer(clock);
  const metrics = unusedMetrics();
  const certificate = new NodeCertificate({ nodeName: "n", clock, random: () => random, logger, metrics });
  const stop = new AbortController();
  await certificate.obtain(signer, stop.signal);
  const run = certificate.run(signer, stop.signal);
  try {
    await look({ clock, signer, certificate, metrics });
  } finally {
    stop.abort();
    await run;
  }
}

const errors = async ({ metrics }: World) => (await metrics.clientCertificateRenewErrors.get()).values[0]?.value ?? 0;
const validTo = ({ certificate }: World) => new X509Certificate(certificate.current()!.cert).validToDate.getTime();

describe("a node's client certificate", () => {
  test("is asked for as kubelets do", () =>
    running(0, async ({ signer }) => {
      expect(signer.requests).toMatchObject([
        {
          kind: "CertificateSigningRequest",
          spec: {
            signerName: "kubernetes.io/kube-apiserver-client-kubelet",
            usages: ["digital signature", "client auth"],
          },
        },
      ]);
    }));

  test.each([
    [0, 0.7],
    [0.5, 0.8],
    [1, 0.9],
  ])("with the random number %s is renewed at %s of its life, and not before", (random, share) =>
    running(random, async (world) => {
      const { clock, signer } = world;
      const first = world.certificate.current();
      await clock.advance(share * HOUR_MS - 20_000);
      expect([signer.requests.length, world.certificate.current()]).toEqual([1, first]);
      await clock.advance(40_000);
      expect(signer.requests).toHaveLength(2);
      expect(world.certificate.current()!.key).not.toBe(first!.key);
      expect(validTo(world)).toBeGreaterThan(clock.now() + 0.99 * HOUR_MS);
    }),
  );

  test("stays in use, and is asked for again every half minute, while nobody answers", () =>
    running(0, async (world) => {
      const { clock, signer } = world;
      const first = world.certificate.current();
      signer.isDown = true;
      await clock.advance(0.7 * HOUR_MS + 5 * 60_000);
      expect(world.certificate.current()).toBe(first);
      const failures = await errors(world);
      expect(failures).toBeGreaterThanOrEqual(9);
      expect(failures).toBeLessThanOrEqual(11);
      signer.isDown = false;
      await clock.advance(40_000);
      expect(world.certificate.current()).not.toBe(first);
    }));

  test("stays in use while nobody approves the next", () =>
    running(0, async (world) => {
      const { clock, signer } = world;
      const first = world.certificate.current();
      signer.isApproved = false;
      await clock.advance(0.75 * HOUR_MS);
      expect(world.certificate.current()).toBe(first);
      signer.isApproved = true;
      await clock.advance(10_000);
      expect(world.certificate.current()).not.toBe(first);
    }));

  test("is renewed again and again", () =>
    running(0.5, async (world) => {
      for (let hours = 0; hours < 8; hours++) {
        await world.clock.advance(HOUR_MS);
        expect(validTo(world)).toBeGreaterThan(world.clock.now());
      }
    }));

  test("is due by its own dates, whatever the clock said when it came", () => {
    const cert = createCertificate({
      subject: { commonName: "n" },
      keys: generateKeyPair(),
      notBeforeMs: 1_000_000,
      notAfterMs: 2_000_000,
    });
    expect([renewalTime(cert, () => 0), renewalTime(cert, () => 1)]).toEqual([1_700_000, 1_900_000]);
  });
});
