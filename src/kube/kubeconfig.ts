/**
 * Reads kubeconfigs. A reader of our own, because loading client-node costs half a second of processor time and 90 MiB
 * that stay: it is loaded only for what needs its code, the `auth-provider`s of old (`credentials.ts`).
 */
import { existsSync, readFileSync } from "node:fs";
import { isIPv6 } from "node:net";
import { delimiter, dirname, join, resolve } from "node:path";
import type { Cluster, Context, User } from "@kubernetes/client-node";
import { parse } from "yaml";
import { foreignEnvironment } from "../util/environment.ts";
import { toError, VmletError } from "../util/errors.ts";
import { trimEnd } from "../util/text.ts";

/** What of client-node's `KubeConfig` is used, so that one of those will do as well. */
export interface KubeConfig {
  clusters: Cluster[];
  users: User[];
  contexts: Context[];
  currentContext: string;
  getCurrentCluster(): Cluster | null;
  getCurrentUser(): User | null;
}

/** The kubeconfig cannot be used: its owner has to change something. */
class KubeConfigError extends VmletError {
  readonly code = "KUBECONFIG";
}

/** client-go: `InClusterConfig`. */
const SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount";

type Environment = Readonly<Record<string, string | undefined>>;
type Content = Pick<KubeConfig, "clusters" | "users" | "contexts" | "currentContext">;

class LoadedConfig implements KubeConfig {
  readonly clusters: Cluster[];
  readonly users: User[];
  readonly contexts: Context[];
  readonly currentContext: string;

  constructor({ clusters, users, contexts, currentContext }: Content) {
    this.clusters = clusters;
    this.users = users;
    this.contexts = contexts;
    this.currentContext = currentContext;
  }

  getCurrentCluster(): Cluster | null {
    return named(this.clusters, this.#context()?.cluster);
  }

  getCurrentUser(): User | null {
    return named(this.users, this.#context()?.user);
  }

  #context(): Context | null {
    return named(this.contexts, this.currentContext);
  }
}

function named<T extends { name: string }>(all: readonly T[], name: string | undefined): T | null {
  return all.find((each) => each.name === name) ?? null;
}

/**
 * The kubeconfig at `path`; without one, what kubectl would take ($KUBECONFIG, ~/.kube/config), else the service
 * account of the pod that we run in. `context` replaces the file's current one.
 *
 * @throws KubeConfigError that names the file when it cannot be read or parsed, or lacks the context
 */
export function loadKubeConfig(
  options: {
    path?: string | undefined;
    context?: string | undefined;
    /** Where `KUBECONFIG`, `HOME` and the address of the API server are looked up. Default: the process's own. */
    environment?: Environment | undefined;
  } = {},
): KubeConfig {
  const { path, context, environment = foreignEnvironment() } = options;
  let content: Content;
  try {
    content = path === undefined ? defaultContent(environment) : readFile(path);
  } catch (thrown) {
    const file = path === undefined ? "" : ` ${path}`;
    throw new KubeConfigError(`Cannot load the kubeconfig${file}: ${toError(thrown).message}`, { cause: thrown });
  }
  const kubeConfig = new LoadedConfig(context === undefined ? content : { ...content, currentContext: context });
  if (!kubeConfig.getCurrentCluster()) {
    const known = kubeConfig.contexts.map((c) => c.name).join(", ") || "none";
    throw new KubeConfigError(
      `The kubeconfig ${path ?? ""} has no usable context "${kubeConfig.currentContext}" (contexts: ${known})`,
    );
  }
  return kubeConfig;
}

function defaultContent(environment: Environment): Content {
  const files = environment["KUBECONFIG"]?.split(delimiter).filter((file) => file !== "") ?? [];
  if (files.length > 0) return files.map(readFile).reduce(merge);
  const home = environment["HOME"];
  const ofUser = home ? join(home, ".kube/config") : undefined;
  if (ofUser !== undefined && existsSync(ofUser)) return readFile(ofUser);
  if (existsSync(`${SERVICE_ACCOUNT}/token`)) return inCluster(environment);
  return single({ name: "cluster", server: "http://localhost:8080", skipTLSVerify: false }, { name: "user" });
}

function inCluster(environment: Environment): Content {
  const { KUBERNETES_SERVICE_HOST: host = "", KUBERNETES_SERVICE_PORT: port } = environment;
  return single(
    {
      name: "inCluster",
      caFile: `${SERVICE_ACCOUNT}/ca.crt`,
      server: `https://${isIPv6(host) ? `[${host}]` : host}:${port}`,
      skipTLSVerify: false,
    },
    { name: "inClusterUser", authProvider: tokenFile(`${SERVICE_ACCOUNT}/token`) },
  );
}

function single(cluster: Cluster, user: User): Content {
  const currentContext = "loaded-context";
  const context = { name: currentContext, cluster: cluster.name, user: user.name };
  return { clusters: [cluster], users: [user], contexts: [context], currentContext };
}

/** kubectl: of several files the first that says something wins. What is looked up by name is found there first. */
function merge(first: Content, second: Content): Content {
  return {
    clusters: [...first.clusters, ...second.clusters],
    users: [...first.users, ...second.users],
    contexts: [...first.contexts, ...second.contexts],
    currentContext: first.currentContext || second.currentContext,
  };
}

type Entry = Readonly<Record<string, unknown>>;

/** @throws Error; it quotes nothing of the file, which holds credentials */
function readFile(path: string): Content {
  const document = (parse(readFileSync(path, "utf8"), { merge: true, prettyErrors: false }) ?? {}) as Entry;
  const folder = dirname(path);
  return {
    clusters: entries(document, "clusters").map((entry, i) => clusterOf(entry, `clusters[${i}]`, folder)),
    users: entries(document, "users").map((entry, i) => userOf(entry, `users[${i}]`, folder)),
    contexts: entries(document, "contexts").map((entry, i) => contextOf(entry, `contexts[${i}]`)),
    currentContext: text(document["current-context"]) ?? "",
  };
}

function entries(document: Entry, field: string): readonly Entry[] {
  const list = document[field];
  return Array.isArray(list) ? list.map((entry) => (entry ?? {}) as Entry) : [];
}

function clusterOf(entry: Entry, at: string, folder: string): Cluster {
  const cluster = required(entry["cluster"], `${at}.cluster`) as Entry;
  return {
    name: required(text(entry["name"]), `${at}.name`),
    server: trimEnd(required(text(cluster["server"]), `${at}.cluster.server`), "/"),
    skipTLSVerify: cluster["insecure-skip-tls-verify"] === true,
    ...defined({
      caData: text(cluster["certificate-authority-data"]),
      caFile: file(folder, cluster["certificate-authority"]),
      tlsServerName: text(cluster["tls-server-name"]),
      proxyUrl: text(cluster["proxy-url"]),
    }),
  };
}

function userOf(entry: Entry, at: string, folder: string): User {
  const user = (entry["user"] ?? {}) as Entry;
  // client-go knows `tokenFile`, client-node `token-file`; either goes before `token`, as in client-go.
  const path = file(folder, user["tokenFile"] ?? user["token-file"]);
  return {
    name: required(text(entry["name"]), `${at}.name`),
    ...defined({
      certData: text(user["client-certificate-data"]),
      certFile: file(folder, user["client-certificate"]),
      keyData: text(user["client-key-data"]),
      keyFile: file(folder, user["client-key"]),
      token: path === undefined ? text(user["token"]) : undefined,
      authProvider: path === undefined ? (user["auth-provider"] ?? undefined) : tokenFile(path),
      exec: user["exec"] ?? undefined,
      username: text(user["username"]),
      password: text(user["password"]),
      impersonateUser: text(user["as"]),
    }),
  };
}

function contextOf(entry: Entry, at: string): Context {
  const context = required(entry["context"], `${at}.context`) as Entry;
  return {
    name: required(text(entry["name"]), `${at}.name`),
    cluster: required(text(context["cluster"]), `${at}.context.cluster`),
    user: text(context["user"]) ?? "",
  };
}

/** As client-node has it: its file authenticator. */
function tokenFile(path: string): { name: string; config: { tokenFile: string } } {
  return { name: "tokenFile", config: { tokenFile: path } };
}

type Defined<T> = { [K in keyof T]?: NonNullable<T[K]> };

function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>;
}

function required<T>(value: T, at: string): NonNullable<T> {
  if (value === undefined || value === null || value === "") throw new Error(`${at} is missing`);
  return value;
}

/** A file may write a token or a name so that YAML takes it for a number. */
function text(value: unknown): string | undefined {
  const written = typeof value === "number" || typeof value === "boolean" ? String(value) : value;
  return typeof written === "string" && written !== "" ? written : undefined;
}

function file(folder: string, value: unknown): string | undefined {
  const path = text(value);
  return path === undefined ? undefined : resolve(folder, path);
}
