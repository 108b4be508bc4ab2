/**
 * A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler. Ready in
 * about ten seconds. Nodes are authorized as in a production cluster (Node authorizer, NodeRestriction), so an agent
 * that asks for more than a kubelet may is found out here.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { buildControlPlane } from "./build.ts";
import { createAuthority, createSigningKey, type KeyPair } from "./certs.ts";
import { createClient, type Client } from "./client.ts";
import { writeKubeconfig } from "./kubeconfig.ts";
import { freePorts } from "./ports.ts";
import { createSandbox, failWhenExited, type ManagedProcess, type Sandbox } from "./processes.ts";
import { must, waitFor } from "./wait.ts";

export interface ClusterOptions {
  /** Appended to the flags of the API server; the last one of a name wins. */
  apiServerFlags?: readonly string[] | undefined;
  /** Appended to those of the controller-manager. */
  controllerManagerFlags?: readonly string[] | undefined;
  /** Default true. */
  controllerManager?: boolean | undefined;
  /** Default true. */
  scheduler?: boolean | undefined;
  /** Fast commits; only a test of etcd's own durability wants it false. Default true. */
  unsafeNoFsync?: boolean | undefined;
}

export interface Cluster extends AsyncDisposable {
  readonly url: string;
  /** Verifies the API server. */
  readonly caFile: string;
  /** kubeconfig of a member of `system:masters`. */
  readonly adminKubeconfig: string;
  /** A client of that user. */
  readonly admin: Client;
  readonly sandbox: Sandbox;
  /** A kubeconfig with a client certificate of this user. */
  userKubeconfig(name: string, groups?: readonly string[]): Promise<string>;
  /** A client certificate of this user. */
  clientCertificate(name: string, groups?: readonly string[]): Promise<KeyPair>;
  /**
   * Ends the API server with the signal (default SIGKILL), starts it again on the same port and the same data.
   * Scheduler and controller-manager are started again too: they would back off for minutes when it happens again and
   * again.
   */
  restartApiServer(signal?: NodeJS.Signals): Promise<void>;
  processes(): Record<string, ManagedProcess>;
  stop(): Promise<void>;
}

const serviceCidr = "10.96.0.0/16";
const firstServiceIp = "10.96.0.1";

export async function startCluster(options: ClusterOptions = {}): Promise<Cluster> {
  const binary = await buildControlPlane();
  const sandbox = await createSandbox("e2e");
  try {
    return await start(binary, sandbox, options);
  } catch (thrown) {
    await sandbox.close();
    throw thrown;
  }
}

async function start(binary: string, sandbox: Sandbox, options: ClusterOptions): Promise<Cluster> {
  const pki = join(sandbox.dir, "pki");
  await mkdir(pki);
  const [etcdPort, peerPort, apiPort, managerPort, schedulerPort] = (await freePorts(5)) as [
    number,
    number,
    number,
    number,
    number,
  ];
  const url = `https://127.0.0.1:${apiPort}`;
  const ca = await createAuthority(pki, "ca");
  const [frontProxyCa, signing, serving, kubeletClient, adminPair] = await Promise.all([
    createAuthority(pki, "front-proxy-ca"),
    createSigningKey(pki, "service-account"),
    ca.server("apiserver", ["localhost", "127.0.0.1", "kubernetes.default.svc", firstServiceIp]),
    ca.client("apiserver-kubelet-client", {
      commonName: "kube-apiserver-kubelet-client",
      organizations: ["system:masters"],
    }),
    ca.client("admin", { commonName: "admin", organizations: ["system:masters"] }),
  ]);
  const frontProxy = await frontProxyCa.client("front-proxy-client", { commonName: "front-proxy-client" });
  const cluster = { url, caFile: ca.certFile };
  const kubeconfigOf = (name: string, pair: KeyPair) =>
    writeKubeconfig(join(sandbox.dir, `${name}.kubeconfig`), cluster, { clientCertificate: pair });
  const adminKubeconfig = await kubeconfigOf("admin", adminPair);

  const clientCertificate = (name: string, groups: readonly string[] = []) =>
    ca.client(`client-${name.replaceAll(/[^\w.-]/g, "-")}`, { commonName: name, organizations: groups });
  const userKubeconfig = async (name: string, groups: readonly string[] = []) =>
    kubeconfigOf(`user-${name.replaceAll(/[^\w.-]/g, "-")}`, await clientCertificate(name, groups));

  const etcdUrl = `http://127.0.0.1:${etcdPort}`;
  const processes: Record<string, ManagedProcess> = {};
  processes["etcd"] = sandbox.spawn("etcd", binary, [
    "etcd",
    `--data-dir=${join(sandbox.dir, "etcd")}`,
    `--listen-client-urls=${etcdUrl}`,
    `--advertise-client-urls=${etcdUrl}`,
    `--listen-peer-urls=http://127.0.0.1:${peerPort}`,
    `--initial-advertise-peer-urls=http://127.0.0.1:${peerPort}`,
    `--initial-cluster=default=http://127.0.0.1:${peerPort}`,
    `--unsafe-no-fsync=${options.unsafeNoFsync ?? true}`,
    "--log-level=warn",
  ]);

  const apiServerArgs = [
    "kube-apiserver",
    `--etcd-servers=${etcdUrl}`,
    "--bind-address=127.0.0.1",
    "--advertise-address=127.0.0.1",
    `--secure-port=${apiPort}`,
    // A loopback address is refused as an endpoint of the service `kubernetes`; nothing here needs that service.
    "--endpoint-reconciler-type=none",
    `--tls-cert-file=${serving.certFile}`,
    `--tls-private-key-file=${serving.keyFile}`,
    `--client-ca-file=${ca.certFile}`,
    `--service-account-key-file=${signing.publicKeyFile}`,
    `--service-account-signing-key-file=${signing.privateKeyFile}`,
    "--service-account-issuer=https://kubernetes.default.svc",
    `--service-cluster-ip-range=${serviceCidr}`,
    "--authorization-mode=Node,RBAC",
    "--enable-admission-plugins=NodeRestriction",
    `--kubelet-client-certificate=${kubeletClient.certFile}`,
    `--kubelet-client-key=${kubeletClient.keyFile}`,
    "--kubelet-preferred-address-types=InternalIP,Hostname",
    `--requestheader-client-ca-file=${frontProxyCa.certFile}`,
    "--requestheader-allowed-names=front-proxy-client",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    `--proxy-client-cert-file=${frontProxy.certFile}`,
    `--proxy-client-key-file=${frontProxy.keyFile}`,
    "--allow-privileged=true",
    "--shutdown-delay-duration=0s",
    ...(options.apiServerFlags ?? []),
  ];
  const admin = await createClient(adminKubeconfig);
  const startApiServer = async () => {
    const child = sandbox.spawn("kube-apiserver", binary, apiServerArgs);
    processes["kube-apiserver"] = child;
    await Promise.race([
      failWhenExited(child),
      waitFor({ what: `the API server to be ready (log: ${child.logFile})`, timeoutMs: 90_000 }, () =>
        admin.text("/readyz"),
      ),
    ]);
  };
  await startApiServer();

  const startController = (name: string, port: number, kubeconfig: string, flags: readonly string[] = []) => {
    processes[name] = sandbox.spawn(name, binary, [
      name,
      "--bind-address=127.0.0.1",
      `--secure-port=${port}`,
      `--kubeconfig=${kubeconfig}`,
      `--authentication-kubeconfig=${kubeconfig}`,
      `--authorization-kubeconfig=${kubeconfig}`,
      "--leader-elect=false",
      "--kube-api-qps=500",
      "--kube-api-burst=1000",
      ...flags,
    ]);
  };
  const managerKubeconfig = await userKubeconfig("system:kube-controller-manager");
  const schedulerKubeconfig = await userKubeconfig("system:kube-scheduler");
  const startControllers = () => {
    if (options.controllerManager ?? true)
      startController("kube-controller-manager", managerPort, managerKubeconfig, [
        `--service-account-private-key-file=${signing.privateKeyFile}`,
        `--root-ca-file=${ca.certFile}`,
        `--cluster-signing-cert-file=${ca.certFile}`,
        `--cluster-signing-key-file=${ca.keyFile}`,
        "--use-service-account-credentials=true",
        ...(options.controllerManagerFlags ?? []),
      ]);
    if (options.scheduler ?? true) startController("kube-scheduler", schedulerPort, schedulerKubeconfig);
  };
  startControllers();
  if (options.controllerManager ?? true) {
    // Pods are refused until the controller-manager has made it.
    await waitFor({ what: "the default ServiceAccount", timeoutMs: 60_000 }, () =>
      admin.get("/api/v1/namespaces/default/serviceaccounts/default"),
    );
  }

  const stop = async () => {
    admin.close();
    await sandbox.close();
  };
  return {
    url,
    caFile: ca.certFile,
    adminKubeconfig,
    admin,
    sandbox,
    userKubeconfig,
    clientCertificate,
    processes: () => ({ ...processes }),
    async restartApiServer(signal = "SIGKILL") {
      const child = processes["kube-apiserver"];
      must(child !== undefined && child.running, "the API server is not running");
      await child.kill(signal);
      await startApiServer();
      for (const name of ["kube-controller-manager", "kube-scheduler"]) await processes[name]?.kill(signal);
      startControllers();
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}
