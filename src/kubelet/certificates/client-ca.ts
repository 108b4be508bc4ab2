/**
 * The CA that client certificates of the kubelet API are checked against: from a file, or as the cluster publishes it.
 */
import { X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createSecureContext } from "node:tls";
import { certificateError, CertificateError } from "../../kube/certificates.ts";
import { isNotFound } from "../../kube/errors.ts";
import type { Kube } from "../../kube/kube.ts";
import { resourcePath } from "../../kube/paths.ts";
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import { followFiles, Holder, reloadable, type Reloadable } from "../../util/reloadable.ts";

const CONFIG_MAP_POLL_MS = 60_000;

/**
 * The CA bundle for client certificates, from a file.
 *
 * @throws CertificateError when the first reading gives no certificate
 */
export async function fileClientCa(options: {
  file: string;
  clock: Clock;
  logger: Logger;
}): Promise<Reloadable<string>> {
  const { file, clock, logger } = options;
  return await followFiles({
    read: () => readFile(file, "utf8"),
    check: (bundle) => checkBundle(bundle, file),
    onLoaded: () => logger.info({ file }, "Client CA loaded"),
    onFailed: (thrown) => warnCa(logger, thrown),
    clock,
  }).catch((thrown: unknown) => {
    throw certificateError(file, thrown);
  });
}

const CA_CONFIG_MAP = { namespace: "kube-system", name: "extension-apiserver-authentication", key: "client-ca-file" };

/**
 * The cluster's own client CA, as the API server publishes it. On kubeadm clusters it signs the API server's kubelet
 * client certificate; where it does not, give a file. Without the map or the right to read it, client certificates are
 * not accepted.
 */
export async function configMapClientCa(options: {
  kube: Kube;
  clock: Clock;
  logger: Logger;
  signal: AbortSignal;
}): Promise<Reloadable<string>> {
  const { kube, clock, logger } = options;
  const holder = new Holder<string>();
  const { namespace, name, key } = CA_CONFIG_MAP;
  const load = async (signal: AbortSignal) => {
    const path = resourcePath({ resource: "configmaps", namespace, name });
    let bundle: string | undefined;
    try {
      bundle = (await kube.request<{ data?: Record<string, string> }>({ method: "GET", path, signal })).data?.[key];
    } catch (thrown) {
      if (!isNotFound(thrown)) throw thrown;
    }
    if (bundle === undefined) throw new CertificateError(`ConfigMap ${namespace}/${name} has no ${key}`);
    if (bundle === holder.current()) return;
    checkBundle(bundle, `ConfigMap ${namespace}/${name}`);
    holder.set(bundle);
    logger.info({ namespace, name }, "Client CA loaded");
  };
  await load(options.signal).catch((thrown: unknown) => options.signal.aborted || warnCa(logger, thrown));
  return reloadable(holder, clock, async (signal) => {
    await load(signal).catch((thrown: unknown) => signal.aborted || warnCa(logger, thrown));
    return CONFIG_MAP_POLL_MS;
  });
}

function warnCa(logger: Logger, thrown: unknown): void {
  logger.warn({ err: thrown }, "Client CA not loaded, what is loaded stays");
}

function checkBundle(bundle: string, source: string): void {
  try {
    // Throws unless the text begins with a certificate; TLS itself reads any others.
    createSecureContext({ ca: bundle });
    new X509Certificate(bundle);
  } catch (thrown) {
    throw new CertificateError(`${source}: no usable CA certificate: ${toError(thrown).message}`, { cause: thrown });
  }
}
