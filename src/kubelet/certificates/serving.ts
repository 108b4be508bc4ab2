/**
 * The certificate that the kubelet API serves with: from files, from a signing request, or made here. Each source keeps
 * its last good one through any error.
 */
import { X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import {
  certificateError,
  checkPair,
  renewalTime,
  requestCertificate,
  type CertificatePair,
} from "../../kube/certificates.ts";
import type { Kube } from "../../kube/kube.ts";
import type { Logger } from "../../telemetry/logger.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";
import { createCertificate, generateKeyPair, privateKeyPem, type SubjectAltNames } from "../../util/x509.ts";
import { FILE_POLL_MS, followFiles, Holder, reloadable, type Reloadable } from "../../util/reloadable.ts";

export type ServingCertificate = CertificatePair;

/** What the node advertises; a serving certificate must cover all of it. */
export type AdvertisedNames = () => SubjectAltNames;

const RETRY_MS = 30_000;
const SELF_SIGNED_LIFE_MS = 365 * 86_400_000;
const HOUR_MS = 3600_000;

/**
 * A certificate and key in files, read again every 10 s: watches do not see the swapped links of projected volumes. A
 * pair that does not match (one file written, the other not yet) is left for the next round.
 *
 * @throws CertificateError when the first reading gives no usable pair
 */
export async function fileCertificate(options: {
  certFile: string;
  keyFile: string;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
}): Promise<Reloadable<ServingCertificate>> {
  const { certFile, keyFile, clock, logger, metrics } = options;
  const certificate = await followFiles<ServingCertificate>({
    read: async () => ({ cert: await readFile(certFile, "utf8"), key: await readFile(keyFile, "utf8") }),
    check: (pair) => checkPair(pair, certFile),
    onLoaded: () => logger.info({ certFile }, "Serving certificate loaded"),
    onFailed: (thrown) => {
      metrics.serverCertificateRenewErrors.inc();
      logger.warn({ certFile, err: thrown }, "Serving certificate not reloaded, the old one stays");
    },
    clock,
  }).catch((thrown: unknown) => {
    throw certificateError(certFile, thrown);
  });
  reportTtl(metrics, clock, certificate);
  return certificate;
}

/**
 * A certificate made here. It encrypts but proves nothing: API servers that verify kubelets refuse it, and
 * metrics-server needs `--kubelet-insecure-tls`. Replaced when the advertised names change or its life is nearly over.
 */
export function selfSignedCertificate(options: {
  nodeName: string;
  names: AdvertisedNames;
  /** By the configuration: then it is no news. */
  isAskedFor?: boolean | undefined;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
}): Reloadable<ServingCertificate> {
  const { nodeName, names, isAskedFor = false, clock, logger, metrics } = options;
  const holder = new Holder<ServingCertificate>();
  reportTtl(metrics, clock, holder);
  const renewIfNeeded = () => {
    const pair = holder.current();
    if (pair !== undefined && coversNames(pair.cert, names()) && lifeLeft(pair.cert, clock) > 0.2) return;
    holder.set(createSelfSigned(nodeName, names(), clock));
    if (isAskedFor) return;
    logger.warn(
      {},
      "Serving with a self-signed certificate: API servers that verify kubelets will refuse it; give files or use certificate signing",
    );
  };
  renewIfNeeded();
  return reloadable(holder, clock, async () => {
    renewIfNeeded();
    return FILE_POLL_MS;
  });
}

function createSelfSigned(nodeName: string, altNames: SubjectAltNames, clock: Clock): ServingCertificate {
  const keys = generateKeyPair();
  const now = clock.now();
  const cert = createCertificate({
    // As the kubelet names its own.
    subject: { commonName: `${nodeName}@${Math.floor(now / 1000)}` },
    keys,
    altNames: { ...altNames, dnsNames: [...new Set([nodeName, ...altNames.dnsNames])] },
    usages: ["serverAuth"],
    notBeforeMs: now - HOUR_MS,
    notAfterMs: now + SELF_SIGNED_LIFE_MS,
  });
  return { cert, key: privateKeyPem(keys.privateKey) };
}

/**
 * A certificate from the cluster's signer `kubernetes.io/kubelet-serving`, which wants: organization `system:nodes`,
 * common name `system:node:NAME`, a requester of just that name, and an approval. Until it is there, a self-signed one
 * serves. It is renewed at 70 to 90 % of its life, or when the advertised names change.
 */
export function signedCertificate(options: {
  nodeName: string;
  names: AdvertisedNames;
  /** Must act as `system:node:NAME`. */
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  metrics: Metrics;
}): Reloadable<ServingCertificate> {
  const { nodeName, names, kube, clock, random, logger, metrics } = options;
  const holder = new Holder<ServingCertificate>();
  reportTtl(metrics, clock, holder);
  holder.set(createSelfSigned(nodeName, names(), clock));
  let signed = false;
  let renewAt = 0;
  return reloadable(holder, clock, async (signal) => {
    const pair = holder.current()!;
    if (signed && clock.now() < renewAt && coversNames(pair.cert, names())) return FILE_POLL_MS;
    if (names().dnsNames.length + names().ipAddresses.length === 0) return FILE_POLL_MS;
    try {
      const next = await requestCertificate({
        signerName: "kubernetes.io/kubelet-serving",
        usages: ["digital signature", "server auth"],
        subject: { commonName: `system:node:${nodeName}`, organizations: ["system:nodes"] },
        altNames: names(),
        kube,
        clock,
        signal,
      });
      checkPair(next, "signed serving certificate");
      renewAt = renewalTime(next.cert, random);
      signed = true;
      holder.set(next);
      logger.info({ validTo: new X509Certificate(next.cert).validTo }, "Serving certificate signed by the cluster");
      return FILE_POLL_MS;
    } catch (thrown) {
      if (signal.aborted) return 0;
      metrics.serverCertificateRenewErrors.inc();
      logger.warn(
        { err: thrown },
        "Serving certificate not signed, will ask again; requests need approval: kubectl certificate approve",
      );
      return RETRY_MS;
    }
  });
}

/**
 * True when the certificate names every address and DNS name.
 * @internal
 */
export function coversNames(cert: string, names: SubjectAltNames): boolean {
  const certificate = new X509Certificate(cert);
  return (
    names.dnsNames.every((dnsName) => certificate.checkHost(dnsName, { subject: "never" }) !== undefined) &&
    names.ipAddresses.every((address) => certificate.checkIP(address) !== undefined)
  );
}

function lifeLeft(cert: string, clock: Clock): number {
  const { validFromDate, validToDate } = new X509Certificate(cert);
  return (validToDate.getTime() - clock.now()) / (validToDate.getTime() - validFromDate.getTime());
}

function reportTtl(metrics: Metrics, clock: Clock, holder: Pick<Holder<ServingCertificate>, "current">): void {
  metrics.onScrape(() => {
    const pair = holder.current();
    if (pair)
      metrics.serverCertificateTtl.set((new X509Certificate(pair.cert).validToDate.getTime() - clock.now()) / 1000);
  });
}
