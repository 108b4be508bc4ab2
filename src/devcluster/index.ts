/**
 * devcluster: a small in-memory Kubernetes API server, for `vmlet dev` and the fast tests. It keeps the kinds that a
 * node agent, its pods and their controllers meet, answers as kube-apiserver 1.37 does (test/e2e/fidelity holds it to
 * that), binds pods to nodes, and runs the controllers of workloads, Services and nodes. Nothing outlives it.
 *
 * It has no kind, verb or column that neither a test nor `vmlet dev` needs, and is no part of the agent: only
 * `cli/dev.ts` and tests import it.
 */
import { randomBytes } from "node:crypto";
import { createServer as createHttpServer, type Server } from "node:http";
import { createServer as createHttpsServer } from "node:https";
import { millisecondsInDay, millisecondsInHour } from "date-fns/constants";
import { stringify } from "yaml";
import { closeNow, listen, urlOf } from "../http/listen.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { systemRandom, type Random } from "../util/random.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../util/x509.ts";
import { Auth, type Allow } from "./auth/auth.ts";
import { Binder } from "./controllers/binder.ts";
import { ControllerManager } from "./controllers/index.ts";
import type { PublishNames } from "./controllers/service-names.ts";
import type { ServiceProxyOptions } from "./controllers/service-proxy.ts";
import { createSystemObjects, NamespaceLifecycle } from "./controllers/namespaces.ts";
import type { VolumeDriver } from "./controllers/volumes.ts";
import type { Json } from "./objects/object.ts";
import { ObjectApi } from "./kinds/object-api.ts";
import { createKubeletProxy, type KubeletProxy, type KubeletTarget } from "./http/kubelet-proxy.ts";
import { ApiServer } from "./http/server.ts";
import { Usage } from "./kubectl/usage.ts";
import { Storage } from "./objects/storage.ts";

export type { VolumeAccess, VolumeDriver } from "./controllers/volumes.ts";
export type { PublishNames } from "./controllers/service-names.ts";
export type { ServiceProxyOptions } from "./controllers/service-proxy.ts";
export type { StoredObject } from "./objects/object.ts";

export interface DevClusterOptions {
  clock: Clock;
  logger: Logger;
  random?: Random | undefined;
  /** Default 127.0.0.1: nobody but this machine. */
  host?: string | undefined;
  /** Default 0, any free port. */
  port?: number | undefined;
  /** Serve HTTPS with a certificate made for the occasion. Default true: kubectl sends its token to nothing else. */
  tls?: boolean | undefined;
  /** The administrator's bearer token; by default a random one. */
  token?: string | undefined;
  /** What others than administrators and nodes may do, beyond asking about themselves. */
  allow?: Allow | undefined;
  /**
   * How kubelets know this server when it forwards logs, exec, attach, port-forward and node proxies to them. By
   * default the administrator's token, which a kubelet has reviewed by this very server.
   */
  kubeletCredential?: KubeletTarget["credential"] | undefined;
  /** Bind pods to nodes; default true. */
  binder?: boolean | undefined;
  /** Run the controllers of workloads, Services and nodes, and collect garbage; default true. */
  controllers?: boolean | undefined;
  /** Of the default ServiceAccounts; absent is true, as in every cluster. */
  automountServiceAccountToken?: boolean | undefined;
  /** Serve the addresses of Services. Default: nothing answers there. */
  serviceProxy?: ServiceProxyOptions | undefined;
  /** Makes volumes for claims, by its own class, which is the default. Absent: claims stay Pending. */
  volumeDriver?: VolumeDriver | undefined;
  /** Told of the names of Services for each namespace, and of each change of them. */
  publishNames?: PublishNames | undefined;
  /** How many changes watches can resume across; older ones get 410. Default 20,000. */
  logSize?: number | undefined;
  /** How often idle watches get a bookmark; default a minute, as kube-apiserver's. */
  bookmarkIntervalMs?: number | undefined;
}

export interface DevCluster {
  /** `https://127.0.0.1:PORT`. */
  url: string;
  token: string;
  /** PEM of the server's certificate; undefined over HTTP. */
  caBundle: string | undefined;
  /** A kubeconfig of the administrator, as an object and as YAML. */
  kubeconfig: object;
  kubeConfigYaml: string;
  /** Direct access for tests: reading and writing behind the API's back. */
  storage: Storage;
  objects: ObjectApi;
  /** Looks once at every pod that waits for a node. It does so by itself at every change. */
  bindNow(): void;
  /** Ends watches and connections and stops listening. */
  close(): Promise<void>;
}

/** Starts a cluster of no nodes. Resolves when it serves. @throws Error when the port is taken */
export async function startDevCluster(options: DevClusterOptions): Promise<DevCluster> {
  const { clock, logger } = options;
  const random = options.random ?? systemRandom;
  const host = options.host ?? "127.0.0.1";
  const token = options.token ?? randomBytes(24).toString("base64url");
  const storage = new Storage({ logSize: options.logSize });
  const objects = new ObjectApi({ storage, clock, random, serviceNetwork: options.serviceProxy?.network });
  const auth = new Auth({
    adminToken: token,
    clock,
    find: (resource, key) => storage.get(resource, key),
    allow: options.allow,
  });
  const kubelets = kubeletProxyOf(storage, options.kubeletCredential ?? { token });
  const usage = new Usage({ objects, kubelets, clock, logger });
  const api = new ApiServer({
    objects,
    auth,
    clock,
    random,
    logger,
    kubelets,
    usage,
    bookmarkIntervalMs: options.bookmarkIntervalMs ?? 60_000,
  });

  const certificate = options.tls === false ? undefined : makeCertificate(clock, host, `${objects.serviceNetwork}.0.1`);
  const server: Server = certificate ? createHttpsServer(certificate) : createHttpServer();
  server.on("request", (request, response) => void api.handle(request, response));
  server.on("upgrade", (request, socket, head) => void api.handleUpgrade(request, socket, head));
  const port = await listen(server, { host, port: options.port ?? 0 }, (thrown) =>
    logger.warn({ err: thrown }, "Devcluster: a connection was not accepted"),
  );
  const url = urlOf(certificate ? "https" : "http", host, port);

  const namespaces = new NamespaceLifecycle({
    objects,
    caBundle: certificate?.cert ?? "",
    automountServiceAccountToken: options.automountServiceAccountToken,
  });
  namespaces.start();
  createSystemObjects(objects, { port, caBundle: certificate?.cert ?? "", volumeDriver: options.volumeDriver });
  const binder = new Binder({ objects, clock, logger });
  if (options.binder !== false) binder.start();
  const controllers = new ControllerManager({
    objects,
    usage,
    clock,
    logger,
    serviceProxy: options.serviceProxy && { ...options.serviceProxy, random },
    publishNames: options.publishNames,
    volumeDriver: options.volumeDriver,
  });
  if (options.controllers !== false) controllers.start();

  const kubeconfig = makeKubeconfig({ url, token, caBundle: certificate?.cert });
  return {
    url,
    token,
    caBundle: certificate?.cert,
    kubeconfig,
    kubeConfigYaml: stringify(kubeconfig),
    storage,
    objects,
    bindNow: () => binder.runOnce(),
    async close() {
      controllers.stop();
      binder.stop();
      namespaces.stop();
      api.closeWatches();
      await closeNow(server);
    },
  };
}

/** kube-apiserver's port for a Node that names none. */
const KUBELET_PORT = 10250;

function kubeletProxyOf(storage: Storage, credential: KubeletTarget["credential"]): KubeletProxy {
  const names = (containers: Json): string[] => (containers ?? []).map((c: Json) => c.name as string);
  return createKubeletProxy({
    getPod(namespace, name) {
      const pod = storage.get("/pods", `${namespace}/${name}`);
      return (
        pod && {
          nodeName: pod.spec.nodeName,
          phase: pod.status?.phase,
          containers: names(pod.spec.containers),
          initContainers: names(pod.spec.initContainers),
          ephemeralContainers: names(pod.spec.ephemeralContainers),
        }
      );
    },
    resolveKubelet(nodeName) {
      const status = storage.get("/nodes", nodeName)?.status;
      const addressOf = (type: string): string | undefined =>
        status?.addresses?.find((a: Json) => a.type === type)?.address;
      const host = addressOf("InternalIP") ?? addressOf("Hostname");
      if (host === undefined) return undefined;
      const port: number = status.daemonEndpoints?.kubeletEndpoint?.Port || KUBELET_PORT;
      return { url: urlOf("https", host, port), credential };
    },
  });
}

const YEAR_MS = 365 * millisecondsInDay;

/** A self-signed certificate for `host`; clients trust it by having it. */
function makeCertificate(clock: Clock, host: string, serviceIp: string): { cert: string; key: string } {
  const keys = generateKeyPair();
  const isIp = /^[\d.]+$|:/.test(host);
  const cert = createCertificate({
    subject: { commonName: "devcluster" },
    keys,
    altNames: {
      dnsNames: ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", ...(isIp ? [] : [host])],
      ipAddresses: [...new Set(["127.0.0.1", "::1", serviceIp, ...(isIp ? [host] : [])])],
    },
    usages: ["serverAuth"],
    notBeforeMs: clock.now() - millisecondsInHour,
    notAfterMs: clock.now() + YEAR_MS,
  });
  return { cert, key: privateKeyPem(keys.privateKey) };
}

function makeKubeconfig(options: { url: string; token: string; caBundle: string | undefined }): object {
  const name = "vmlet-dev";
  return {
    apiVersion: "v1",
    kind: "Config",
    "current-context": name,
    clusters: [
      {
        name,
        cluster: {
          server: options.url,
          ...(options.caBundle && { "certificate-authority-data": Buffer.from(options.caBundle).toString("base64") }),
        },
      },
    ],
    contexts: [{ name, context: { cluster: name, user: name, namespace: "default" } }],
    users: [{ name, user: { token: options.token } }],
  };
}
