/**
 * Cluster addresses that answer, on a machine where nobody may change the network: a range of this machine's own
 * loopback addresses, and a listener in this process for each TCP port of each Service. It leads every connection to a
 * ready endpoint of that moment, as kube-proxy does.
 */
import { connect, createServer, type Server, type Socket } from "node:net";
import { pipeline, type Duplex } from "node:stream";
import { listen } from "../../http/listen.ts";
import type { Random } from "../../util/random.ts";
import { toError } from "../../util/errors.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";

export interface ServiceProxyOptions {
  /** The first two bytes of the addresses, within 127.0.0.0/8: `127.96`. */
  network: string;
  /** A byte stream to a port of a pod. */
  dial(podUid: string, port: number, signal: AbortSignal): Promise<Duplex>;
}

/** Of all Services together: a program that opens connections without end must not take this process's files. */
const MAX_CONNECTIONS = 500;
/** A client that has gone without a reset looks like one that waits. */
const DIAL_MS = 30_000;

const services = mustFindKind("", "v1", "services");

interface Listener {
  server: Server;
  /** `namespace/name` of the Service. */
  service: string;
  /** The port's name; empty when it is the only one. */
  port: string;
}

export class ServiceProxy extends KeyedController {
  readonly #dial: ServiceProxyOptions["dial"];
  readonly #random: Random;
  readonly #logger: ControllerOptions["logger"];
  /** By `address:port`. */
  readonly #listeners = new Map<string, Listener>();
  readonly #connections = new Set<Socket>();

  constructor(options: ControllerOptions & ServiceProxyOptions & { random: Random }) {
    super(options, "kube-proxy");
    this.#dial = options.dial;
    this.#random = options.random;
    this.#logger = options.logger;
  }

  start(): void {
    this.watchOwn(services);
  }

  override stop(): void {
    super.stop();
    for (const { server } of this.#listeners.values()) server.close();
    for (const socket of this.#connections) socket.destroy();
  }

  protected sync(key: string): void {
    const service = this.storage.get("/services", key);
    const wanted = service ? addressesOf(service) : new Map<string, Address>();
    for (const [place, { server, service: owner }] of this.#listeners) {
      if (owner !== key || wanted.has(place)) continue;
      this.#listeners.delete(place);
      server.close();
    }
    for (const [place, address] of wanted) {
      const listener = this.#listeners.get(place);
      if (listener) listener.port = address.name;
      else this.#listen(place, address, service!);
    }
  }

  #listen(place: string, { ip, port, name }: Address, service: StoredObject): void {
    // Half-open: a client that has said all still waits for its answer.
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => this.#serve(listener, socket));
    const listener: Listener = {
      server,
      service: `${service.metadata.namespace}/${service.metadata.name}`,
      port: name,
    };
    this.#listeners.set(place, listener);
    const onError = (thrown: Error) => this.#logger.warn({ err: thrown }, "Devcluster: a connection was not accepted");
    listen(server, { host: ip, port }, onError).catch((thrown: unknown) => {
      // Looked at again when the Service changes, or one of the same name is made.
      if (this.#listeners.get(place) === listener) this.#listeners.delete(place);
      this.actor.event(service, "Warning", "FailedToListen", whyNot(place, port, toError(thrown)));
    });
  }

  #serve({ service, port }: Listener, socket: Socket): void {
    const endpoints = this.#endpoints(service, port);
    const endpoint = endpoints[Math.floor(this.#random() * endpoints.length)];
    if (endpoint === undefined || this.#connections.size >= MAX_CONNECTIONS) {
      socket.resetAndDestroy();
      return;
    }
    this.#connections.add(socket);
    socket.once("close", () => this.#connections.delete(socket));
    socket.on("error", () => {});
    // Nobody waits any more for what its client has given up; one that has only said all may wait for an answer.
    const gone = new AbortController();
    const tooLate = this.clock.after(DIAL_MS, () => {
      gone.abort(new Error("the machine took no connection in time"));
      socket.resetAndDestroy();
    });
    socket.once("close", () => {
      tooLate();
      gone.abort(new Error("the client is gone"));
    });
    this.#connect(endpoint, gone.signal).then(
      (upstream) => {
        tooLate();
        // Each direction ends by itself; what breaks one breaks both.
        const broken = (thrown: unknown) => {
          if (!thrown) return;
          socket.destroy();
          upstream.destroy();
        };
        pipeline(socket, upstream, broken);
        pipeline(upstream, socket, broken);
      },
      () => socket.resetAndDestroy(),
    );
  }

  async #connect({ address, port, podUid }: Endpoint, signal: AbortSignal): Promise<Duplex> {
    if (podUid !== undefined) return await this.#dial(podUid, port, signal);
    // Of a Service without a selector: the address is what somebody wrote down.
    const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
    const socket = connect({ host: address, port, allowHalfOpen: true, noDelay: true, signal });
    socket.once("connect", () => resolve(socket)).once("error", reject);
    return await promise;
  }

  #endpoints(service: string, port: string): Endpoint[] {
    const subsets: Json[] = this.storage.get("/endpoints", service)?.["subsets"] ?? [];
    return subsets.flatMap(({ addresses, ports }) => {
      const found = ((ports ?? []) as Json[]).find((each) => (each.name ?? "") === port);
      return found
        ? ((addresses ?? []) as Json[]).map(({ ip, targetRef }) => ({
            address: ip as string,
            port: found.port as number,
            podUid: targetRef?.kind === "Pod" ? (targetRef.uid as string) : undefined,
          }))
        : [];
    });
  }
}

interface Address {
  ip: string;
  port: number;
  name: string;
}

interface Endpoint {
  address: string;
  port: number;
  /** Absent: not of a pod. */
  podUid: string | undefined;
}

/** What a Service is to answer on; UDP is not served. */
function addressesOf({ spec }: StoredObject): Map<string, Address> {
  const addresses = new Map<string, Address>();
  if (!spec.clusterIP || spec.clusterIP === "None" || spec.type === "ExternalName") return addresses;
  for (const { port, protocol, name } of (spec.ports ?? []) as Json[])
    if (protocol === "TCP") addresses.set(`${spec.clusterIP}:${port}`, { ip: spec.clusterIP, port, name: name ?? "" });
  return addresses;
}

function whyNot(place: string, port: number, error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  if (code === "EACCES" && port < 1024)
    return `${place} does not answer: ports below 1024 are the administrator's on this machine; give the Service a port of 1024 or more`;
  if (code === "EADDRNOTAVAIL") return `${place} does not answer: this system has no loopback addresses but 127.0.0.1`;
  return `${place} does not answer: ${error.message}`;
}
