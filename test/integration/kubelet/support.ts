/** A kubelet API server over a provider of real processes, and an API server that knows one pod and forwards to it. */
import { spawn as spawnProcess } from "node:child_process";
import { createServer, type Server } from "node:http";
import { connect, type AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { PassThrough, Writable } from "node:stream";
import { spawn as spawnPty } from "@lydell/node-pty";
import { createKubeletProxy } from "../../../src/devcluster/http/kubelet-proxy.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { KubeletServerOptions } from "../../../src/kubelet/options.ts";
import { KubeletServer } from "../../../src/kubelet/server.ts";
import type { Reloadable } from "../../../src/util/reloadable.ts";
import type { ServingCertificate } from "../../../src/kubelet/certificates/serving.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type {
  LogLine,
  LogOptions,
  MachineStats,
  ProcessStreams,
  Provider,
  StreamOptions,
} from "../../../src/provider/provider.ts";
import { HealthChecks } from "../../../src/telemetry/health.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { createCertificate, generateKeyPair, privateKeyPem, type Subject } from "../../../src/util/x509.ts";

const DAY_MS = 86_400_000;

export class TestAuthority {
  readonly #subject: Subject;
  readonly #keys = generateKeyPair();
  readonly cert: string;

  constructor(name = "test-ca") {
    this.#subject = { commonName: name };
    this.cert = createCertificate({ ...this.#life(), subject: this.#subject, keys: this.#keys, isCa: true });
  }

  issue(subject: Subject, usage: "serverAuth" | "clientAuth"): { cert: string; key: string } {
    const keys = generateKeyPair();
    const cert = createCertificate({
      ...this.#life(),
      subject,
      keys,
      usages: [usage],
      issuer: { subject: this.#subject, privateKey: this.#keys.privateKey },
      altNames: usage === "serverAuth" ? { dnsNames: ["localhost"], ipAddresses: ["127.0.0.1"] } : undefined,
    });
    return { cert, key: privateKeyPem(keys.privateKey) };
  }

  #life(): { notBeforeMs: number; notAfterMs: number } {
    return { notBeforeMs: Date.now() - DAY_MS, notAfterMs: Date.now() + DAY_MS };
  }
}

/** A value that a test may replace. */
export function reloadable<T>(initial: T | undefined): Reloadable<T> & { set(value: T): void } {
  let value = initial;
  const listeners: ((value: T) => void)[] = [];
  return {
    current: () => value,
    onChange: (listener) => void listeners.push(listener),
    run: () => Promise.resolve(),
    set(next) {
      value = next;
      for (const listener of listeners) listener(next);
    },
  };
}

export const TESTER = { commonName: "tester", organizations: ["test:admins"] };

/** Knows the token `good`, and lets do whatever `allows` says. Counts what it is asked. */
export class FakeReviews implements Kube {
  readonly reviews: { kind: string; spec: Record<string, unknown> }[] = [];
  allows: (spec: { user: string; groups: string[]; resourceAttributes: Record<string, string> }) => boolean = () =>
    true;
  fault: Error | undefined;

  request<T>(request: KubeRequest): Promise<T> {
    const review = request.body as { kind: string; spec: Record<string, unknown> };
    this.reviews.push(review);
    if (this.fault) return Promise.reject(this.fault);
    if (review.kind === "TokenReview") {
      const authenticated = review.spec["token"] === "good";
      return Promise.resolve({
        status: { authenticated, ...(authenticated && { user: { username: "robot", groups: ["robots"] } }) },
      } as T);
    }
    return Promise.resolve({ status: { allowed: this.allows(review.spec as never) } } as T);
  }

  watch(): never {
    throw new Error("not used");
  }
}

export function testPod(
  overrides: {
    name?: string;
    uid?: string;
    containers?: string[];
    status?: Pod["status"];
    metadata?: Pod["metadata"];
  } = {},
): Pod {
  const containers = overrides.containers ?? ["main"];
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      name: overrides.name ?? "p",
      namespace: "default",
      uid: overrides.uid ?? "uid-1",
      ...overrides.metadata,
    },
    spec: {
      nodeName: "vm-1",
      containers: containers.map((name) => ({ name, image: "busybox", stdin: true, stdinOnce: true })),
    },
    status: overrides.status ?? {
      phase: "Running",
      containerStatuses: containers.map((name) => ({
        name,
        image: "busybox",
        imageID: "",
        ready: true,
        restartCount: 0,
        containerID: `vmlet://${name}-1`,
        state: { running: { startedAt: "2026-01-01T00:00:00Z" } },
      })),
    },
  };
}

/** Runs commands of this machine. Of machines it knows nothing: any id and container will do. */
export class ProcessProvider {
  readonly name = "process-test";
  readonly lines: LogLine[] = [];
  stats: MachineStats[] = [];
  statsCalls = 0;
  /** Sessions that were opened and are not over. */
  openSessions = 0;
  readonly resizes: [number, number][] = [];
  readonly #followers = new Set<() => void>();
  logsEnded = false;

  log(content: string, options: Partial<LogLine> = {}): void {
    this.lines.push({
      at: new Date().toISOString(),
      stream: "stdout",
      partial: false,
      ...options,
      content: Buffer.from(content),
    });
    for (const wake of this.#followers) wake();
  }

  endLogs(): void {
    this.logsEnded = true;
    for (const wake of this.#followers) wake();
  }

  async *getLogs(_id: string, _container: string, options: LogOptions): AsyncGenerator<LogLine> {
    let next = options.tail === undefined ? 0 : Math.max(0, this.lines.length - options.tail);
    for (;;) {
      while (next < this.lines.length) yield this.lines[next++]!;
      if (!options.follow || this.logsEnded) return;
      await new Promise<void>((resolve, reject) => {
        const wake = () => {
          this.#followers.delete(wake);
          resolve();
        };
        this.#followers.add(wake);
        options.signal.addEventListener("abort", () => reject(options.signal.reason as Error), { once: true });
      });
    }
  }

  getStats(): Promise<MachineStats[]> {
    this.statsCalls++;
    return Promise.resolve(this.stats);
  }

  exec(_id: string, _container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    this.openSessions++;
    const streams = options.tty ? this.#pty(command) : this.#pipes(command, options);
    streams.exit.catch(() => {}).finally(() => this.openSessions--);
    return Promise.resolve(streams);
  }

  attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    return this.exec(id, container, ["sh", "-c", "echo attached; cat"], options);
  }

  portForward(_id: string, port: number): Promise<Duplex> {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
      socket.once("connect", () => resolve(socket));
      socket.once("error", (error) => reject(new ProviderError("unavailable", error.message)));
    });
  }

  #pipes([program = "", ...args]: string[], options: StreamOptions): ProcessStreams {
    const child = spawnProcess(program, args, { stdio: ["pipe", "pipe", "pipe"] });
    if (!options.stdin) child.stdin.end();
    child.stdin.on("error", () => {});
    // Node throws away what nobody has begun to read when a child exits; a provider must keep it.
    const stdout = child.stdout.pipe(new PassThrough());
    const stderr = child.stderr.pipe(new PassThrough());
    return {
      stdin: options.stdin ? child.stdin : null,
      stdout: options.stdout ? stdout : (stdout.resume(), null),
      stderr: options.stderr ? stderr : (stderr.resume(), null),
      resize: () => {},
      exit: new Promise((resolve, reject) => {
        child.once("error", (error) => reject(new ProviderError("invalid", error.message)));
        child.once("exit", (code, signal) => resolve({ exitCode: code ?? (signal === "SIGKILL" ? 137 : 143) }));
      }),
      close: () => void child.kill("SIGKILL"),
    };
  }

  #pty([program = "", ...args]: string[]): ProcessStreams {
    const pty = spawnPty(program, args, { cols: 80, rows: 24, encoding: null });
    const stdout = new PassThrough();
    pty.onData((data: string | Buffer) => void stdout.write(data));
    return {
      stdin: new Writable({
        write: (chunk: Buffer, _encoding, callback) => {
          pty.write(chunk.toString("latin1"));
          callback();
        },
      }),
      stdout,
      stderr: null,
      resize: (columns, rows) => {
        this.resizes.push([columns, rows]);
        pty.resize(columns, rows);
      },
      exit: new Promise((resolve) =>
        pty.onExit(({ exitCode }) => {
          stdout.end();
          resolve({ exitCode });
        }),
      ),
      close: () => {
        try {
          pty.kill("SIGKILL");
        } catch {
          // It is over already.
        }
      },
    };
  }
}

export interface TestKubelet extends AsyncDisposable {
  server: KubeletServer;
  url: string;
  provider: ProcessProvider;
  reviews: FakeReviews;
  authority: TestAuthority;
  client: { cert: string; key: string };
  pods: Map<string, { pod: Pod; machineId: string }>;
  certificate: ReturnType<typeof reloadable<ServingCertificate>>;
  clientCa: ReturnType<typeof reloadable<string>>;
}

export async function startKubelet(overrides: Partial<KubeletServerOptions> = {}): Promise<TestKubelet> {
  const authority = new TestAuthority();
  const provider = new ProcessProvider();
  const reviews = new FakeReviews();
  const pods = new Map([["default/p", { pod: testPod(), machineId: "m-1" }]]);
  const certificate = reloadable<ServingCertificate>(authority.issue({ commonName: "vm-1" }, "serverAuth"));
  const clientCa = reloadable<string>(authority.cert);
  const server = new KubeletServer({
    host: "127.0.0.1",
    port: 0,
    nodeName: "vm-1",
    provider: provider as unknown as Provider,
    pods: { get: (namespace, name) => pods.get(`${namespace}/${name}`), list: () => [...pods.values()] },
    kube: reviews,
    clock: systemClock,
    logger: silentLogger,
    metrics: unusedMetrics(),
    certificate,
    clientCa,
    machineLabels: {},
    capacity: () => ({ cpuMillis: 4000, memoryBytes: 8 * 2 ** 30 }),
    livez: new HealthChecks("healthz"),
    version: "1.2.3",
    configuration: () => ({ port: 10250 }),
    ...overrides,
  });
  await server.listen();
  return {
    server,
    url: `https://127.0.0.1:${server.port}`,
    provider,
    reviews,
    authority,
    client: authority.issue(TESTER, "clientAuth"),
    pods,
    certificate,
    clientCa,
    [Symbol.asyncDispose]: () => server.close(0),
  };
}

/** An API server for kubectl: discovery, the kubelet's pods, and what is forwarded to the kubelet. */
export async function startFakeApi(kubelet: TestKubelet): Promise<{ url: string } & AsyncDisposable> {
  const proxy = createKubeletProxy({
    getPod: (namespace, name) => {
      const pod = kubelet.pods.get(`${namespace}/${name}`)?.pod;
      const names = (containers: readonly { readonly name: string }[] = []) => containers.map(({ name }) => name);
      return (
        pod && {
          nodeName: pod.spec?.nodeName,
          phase: pod.status?.phase,
          containers: names(pod.spec?.containers),
          initContainers: names(pod.spec?.initContainers),
          ephemeralContainers: names(pod.spec?.ephemeralContainers),
        }
      );
    },
    resolveKubelet: () => ({ url: kubelet.url, ca: kubelet.authority.cert, credential: kubelet.client }),
  });
  const resource = (name: string, kind: string, namespaced: boolean) => ({
    name,
    kind,
    namespaced,
    singularName: "",
    verbs: ["get", "list", "create"],
  });
  const documents: Record<string, object> = {
    "/api": { kind: "APIVersions", versions: ["v1"] },
    "/apis": { kind: "APIGroupList", apiVersion: "v1", groups: [] },
    "/api/v1": {
      kind: "APIResourceList",
      groupVersion: "v1",
      resources: [
        resource("pods", "Pod", true),
        resource("pods/exec", "PodExecOptions", true),
        resource("pods/attach", "PodAttachOptions", true),
        resource("pods/log", "Pod", true),
        resource("pods/portforward", "PodPortForwardOptions", true),
        resource("nodes", "Node", false),
      ],
    },
  };
  const server: Server = createServer((request, response) => {
    void proxy.handleRequest(request, response).then((handled) => {
      if (handled) return;
      const path = (request.url ?? "").split("?", 1)[0]!;
      const podName = /^\/api\/v1\/namespaces\/default\/pods\/([^/]+)$/.exec(path)?.[1];
      const document = podName === undefined ? documents[path] : kubelet.pods.get(`default/${podName}`)?.pod;
      response.writeHead(document ? 200 : 404, { "content-type": "application/json" });
      response.end(
        JSON.stringify(
          document ?? {
            kind: "Status",
            apiVersion: "v1",
            status: "Failure",
            reason: "NotFound",
            code: 404,
            message: "not found",
          },
        ),
      );
    });
  });
  server.on("upgrade", (request, socket, head) => void proxy.handleUpgrade(request, socket, head));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}
