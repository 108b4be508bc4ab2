/** Certificates that the cluster signs: asking for one, and keeping a node's client certificate fresh. */
import { createPrivateKey, X509Certificate } from "node:crypto";
import { createSecureContext } from "node:tls";
import { minutesToMilliseconds } from "date-fns/minutesToMilliseconds";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import {
  createSigningRequest,
  generateKeyPair,
  privateKeyPem,
  type Subject,
  type SubjectAltNames,
} from "../util/x509.ts";
import type { Kube } from "./kube.ts";
import { resourcePath } from "./paths.ts";

/** PEM texts that belong together. */
export interface CertificatePair {
  cert: string;
  key: string;
}

export class CertificateError extends VmletError {
  readonly code = "CERTIFICATE";
}

/** What reading a certificate from `source` failed with, as an error that names the source. */
export function certificateError(source: string, thrown: unknown): CertificateError {
  if (thrown instanceof CertificateError) return thrown;
  return new CertificateError(`${source}: ${toError(thrown).message}`, { cause: thrown });
}

const SIGNING_TIMEOUT_MS = minutesToMilliseconds(15);
const SIGNING_POLL_MS = 2_000;
const RETRY_MS = 30_000;
const POLL_MS = 10_000;

/** @throws CertificateError when the texts are not PEM, the key is not the certificate's, or TLS would refuse them */
export function checkPair(pair: CertificatePair, source: string): void {
  try {
    if (!new X509Certificate(pair.cert).checkPrivateKey(createPrivateKey(pair.key)))
      throw new Error("the key is not the certificate's");
    createSecureContext(pair);
  } catch (thrown) {
    throw new CertificateError(`${source}: certificate and key cannot be used together: ${toError(thrown).message}`, {
      cause: thrown,
    });
  }
}

/**
 * When to ask for the next certificate, in wall-clock milliseconds: at 70 to 90 % of this one's life, as the kubelet.
 */
export function renewalTime(cert: string, random: Random): number {
  const { validFromDate, validToDate } = new X509Certificate(cert);
  const life = validToDate.getTime() - validFromDate.getTime();
  return validFromDate.getTime() + life * (0.7 + 0.2 * random());
}

interface SigningRequest {
  metadata: { name: string };
  status?: { certificate?: string; conditions?: { type: string; reason?: string; message?: string }[] };
}

/**
 * Asks the cluster to sign a fresh key and waits for the answer.
 *
 * @throws CertificateError when denied, or not answered in 15 minutes; KubeApiError when it may not ask
 */
export async function requestCertificate(options: {
  signerName: string;
  usages: readonly string[];
  subject: Subject;
  altNames?: SubjectAltNames | undefined;
  kube: Kube;
  clock: Clock;
  signal: AbortSignal;
  /** Called with the request's name, for the person who has to approve it. */
  onRequested?: ((name: string) => void) | undefined;
}): Promise<CertificatePair> {
  const { kube, clock, signal, subject, altNames, signerName, usages } = options;
  const keys = generateKeyPair();
  const request = createSigningRequest({ subject, keys, altNames });
  const csrPath = (name?: string) =>
    resourcePath({
      group: "certificates.k8s.io",
      resource: "certificatesigningrequests",
      name,
    });
  const created = await kube.request<SigningRequest>({
    method: "POST",
    path: csrPath(),
    signal,
    body: {
      apiVersion: "certificates.k8s.io/v1",
      kind: "CertificateSigningRequest",
      metadata: { generateName: "csr-" },
      spec: { request: Buffer.from(request).toString("base64"), signerName, usages },
    },
  });
  const { name } = created.metadata;
  options.onRequested?.(name);
  const deadline = clock.monotonic() + SIGNING_TIMEOUT_MS;
  while (clock.monotonic() < deadline) {
    const { status } = await kube.request<SigningRequest>({ method: "GET", path: csrPath(name), signal });
    const refused = status?.conditions?.find((condition) => condition.type === "Denied" || condition.type === "Failed");
    if (refused) {
      throw new CertificateError(
        `signing request ${name} was ${refused.type.toLowerCase()}: ${refused.message ?? refused.reason ?? ""}`,
      );
    }
    if (status?.certificate) {
      return { cert: Buffer.from(status.certificate, "base64").toString("utf8"), key: privateKeyPem(keys.privateKey) };
    }
    await clock.sleep(SIGNING_POLL_MS, signal);
  }
  throw new CertificateError(`signing request ${name} was not approved and signed within 15 minutes`);
}

interface NodeCertificateOptions {
  nodeName: string;
  clock: Clock;
  random: Random;
  logger: Logger;
  metrics: Metrics;
}

/**
 * A node's own client certificate, by the signer `kubernetes.io/kube-apiserver-client-kubelet`. The first is requested
 * with an identity that may request it, every later one with the node's own, as a kubelet does. The key never leaves
 * the process.
 */
export class NodeCertificate {
  readonly #options: NodeCertificateOptions;
  #pair: CertificatePair | undefined;
  #renewAt = 0;

  constructor(options: NodeCertificateOptions) {
    this.#options = options;
    const { clock, metrics } = options;
    metrics.onScrape(() => {
      if (this.#pair)
        metrics.clientCertificateTtl.set(
          (new X509Certificate(this.#pair.cert).validToDate.getTime() - clock.now()) / 1000,
        );
    });
  }

  readonly current = (): CertificatePair | undefined => this.#pair;

  /** Resolves with the first certificate, however long its approval takes. @throws the signal's reason on abort */
  async obtain(kube: Kube, signal: AbortSignal): Promise<void> {
    while (!(await this.#renew(kube, signal))) await this.#options.clock.sleep(RETRY_MS, signal);
  }

  /** Keeps it fresh until the signal aborts. @param kube acts as the node, with this certificate */
  async run(kube: Kube, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    while (!signal.aborted) {
      const isDue = clock.now() >= this.#renewAt;
      const renewed = !isDue || (await this.#renew(kube, signal).catch(() => false));
      await clock.sleep(renewed ? POLL_MS : RETRY_MS, signal).catch(() => undefined);
    }
  }

  async #renew(kube: Kube, signal: AbortSignal): Promise<boolean> {
    const { nodeName, clock, random, logger, metrics } = this.#options;
    try {
      const next = await requestCertificate({
        signerName: "kubernetes.io/kube-apiserver-client-kubelet",
        usages: ["digital signature", "client auth"],
        subject: { commonName: `system:node:${nodeName}`, organizations: ["system:nodes"] },
        kube,
        clock,
        signal,
        onRequested: (request) => logger.info({ request }, "Client certificate requested; it has to be approved"),
      });
      checkPair(next, "signed client certificate");
      this.#renewAt = renewalTime(next.cert, random);
      this.#pair = next;
      logger.info({ validTo: new X509Certificate(next.cert).validTo }, "Client certificate signed by the cluster");
      return true;
    } catch (thrown) {
      signal.throwIfAborted();
      metrics.clientCertificateRenewErrors.inc();
      logger.warn({ err: thrown }, "Client certificate not signed, will ask again");
      return false;
    }
  }
}
