/** A node's kubelet API, with the certificates that it serves and checks by. */
import { ConfigError, configuredBy } from "../config/load.ts";
import { configMapClientCa, fileClientCa } from "../kubelet/certificates/client-ca.ts";
import type { Reloadable } from "../util/reloadable.ts";
import {
  fileCertificate,
  selfSignedCertificate,
  signedCertificate,
  type AdvertisedNames,
  type ServingCertificate,
} from "../kubelet/certificates/serving.ts";
import { KubeletServer } from "../kubelet/server.ts";
import { uidOf } from "../kube/pod.ts";
import { parseDuration } from "../resources/duration.ts";
import type { Pod } from "../kube/wire.ts";
import { machineId, ownerLabels } from "../podspec/machine-id.ts";
import type { BackendInfo } from "./backend-info.ts";
import { kubeletConfiguration } from "./kubelet-configuration.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import type { NodePods } from "./node-pods.ts";
import type { OwnNode } from "./own-node.ts";

/** It listens when the promise resolves. @throws ConfigError when the port is taken or a certificate cannot be read */
export async function createKubelet(
  options: NodeAgentOptions,
  backend: BackendInfo,
  pods: NodePods,
  own: OwnNode,
): Promise<KubeletServer> {
  const { node, clusterId, clock, logger, metrics } = options;
  const { controller } = pods;
  const certificate = await servingCertificate(options);
  const clientCa = await clientCaOf(options);
  const machineOf = (pod: Pod) => ({
    pod: controller.latest(pod),
    machineId: machineId(clusterId, uidOf(pod)),
  });
  const server = new KubeletServer({
    host: node.kubelet.address,
    port: node.kubelet.port,
    nodeName: node.name,
    anonymousMetrics: node.kubelet.anonymousMetrics,
    limits:
      node.kubelet.sessionMaxAge === undefined ? {} : { sessionMaxAgeMs: parseDuration(node.kubelet.sessionMaxAge) },
    auditCommands: options.auditCommands,
    provider: pods.provider,
    can: (capability) => backend.can(capability),
    pods: {
      get: (namespace, name) => {
        const pod = controller.store.getByName(namespace, name);
        return pod && machineOf(pod);
      },
      list: () => controller.store.list().map(machineOf),
    },
    // A standby serves it, too.
    kube: options.kube,
    clock,
    logger,
    metrics,
    tracing: options.tracing,
    certificate,
    clientCa,
    machineLabels: ownerLabels(clusterId, node.name),
    capacity: () => ({
      cpuMillis: own.allocatable.get("cpu")?.toMillis() ?? 0,
      memoryBytes: own.allocatable.get("memory")?.toNumber() ?? 0,
    }),
    livez: options.livez,
    version: options.version,
    ownProbes: () => pods.prober?.tallies() ?? [],
    configuration: () =>
      kubeletConfiguration(node, { port: server.port, maxPods: own.allocatable.get("pods")?.toNumber() }),
  });
  await configuredBy(`nodes[${node.name}].kubelet`, () => server.listen());
  return server;
}

async function clientCaOf(options: NodeAgentOptions): Promise<Reloadable<string>> {
  const { clientCAFile: file } = options.node.kubelet;
  if (file !== undefined) return await fileClientCa({ file, clock: options.clock, logger: options.logger });
  return await configMapClientCa({ ...options, kube: options.self });
}

async function servingCertificate(options: NodeAgentOptions): Promise<Reloadable<ServingCertificate>> {
  const { node, kube, clock, random, logger, metrics } = options;
  const { certFile, keyFile, certificate = certFile === undefined ? "csr" : "files" } = node.kubelet;
  const names: AdvertisedNames = () => ({
    ipAddresses: node.addresses,
    dnsNames: node.hostname === undefined ? [] : [node.hostname],
  });
  switch (certificate) {
    case "files":
      if (certFile === undefined || keyFile === undefined) {
        throw new ConfigError(`nodes[${node.name}].kubelet: certificate: files needs certFile and keyFile`);
      }
      return fileCertificate({ certFile, keyFile, clock, logger, metrics });
    case "self-signed":
      return selfSignedCertificate({ nodeName: node.name, names, isAskedFor: true, clock, logger, metrics });
    case "csr":
      return signedCertificate({ nodeName: node.name, names, kube, clock, random, logger, metrics });
  }
}
