/**
 * What a real cluster's controllers do for every namespace, and without which no pod can be created: its `default`
 * service account and the CA's ConfigMap when it appears; its emptying when it is deleted. Level-triggered: any change
 * in a namespace that is being deleted makes it look again.
 */
import { apiVersionOf, objectKey, storageName, type Kind } from "../kinds/kind.ts";
import { kinds } from "../kinds/kinds.ts";
import { storageKinds } from "../kinds/storage.ts";
import type { ObjectApi, WriteContext } from "../kinds/object-api.ts";
import type { Change } from "../objects/storage.ts";

const SYSTEM_NAMESPACES = ["default", "kube-node-lease", "kube-public", "kube-system"];

const context: WriteContext = {
  user: { username: "system:serviceaccount:kube-system:namespace-controller", groups: ["system:masters"] },
  dryRun: false,
  fieldValidation: "Ignore",
  warnings: [],
};

const namespaced = kinds.filter((kind) => kind.namespaced);
const kindNamed = (resource: string): Kind => kinds.find((kind) => kind.resource === resource && kind.group === "")!;

export class NamespaceLifecycle {
  readonly #objects: ObjectApi;
  readonly #caBundle: string;
  readonly #automount: boolean | undefined;
  readonly #stops: (() => void)[] = [];

  /**
   * @param options.caBundle PEM that pods verify this server with; it becomes `kube-root-ca.crt`
   * @param options.automountServiceAccountToken of the ServiceAccounts that are made here; absent is true
   */
  constructor(options: { objects: ObjectApi; caBundle: string; automountServiceAccountToken?: boolean | undefined }) {
    this.#objects = options.objects;
    this.#caBundle = options.caBundle;
    this.#automount = options.automountServiceAccountToken;
  }

  /** Creates the namespaces that every cluster has, and keeps looking after all of them until `stop`. */
  start(): void {
    const { storage } = this.#objects;
    this.#stops.push(storage.watch("/namespaces", storage.revision, (change) => this.#onNamespace(change)));
    for (const kind of namespaced) {
      this.#stops.push(
        storage.watch(storageName(kind), storage.revision, (change) => {
          if (change.deleted) this.#finish(change.object.metadata.namespace!);
        }),
      );
    }
    for (const name of SYSTEM_NAMESPACES) {
      this.#objects.create(kindNamed("namespaces"), undefined, { metadata: { name } }, context);
    }
  }

  stop(): void {
    for (const stop of this.#stops) stop();
  }

  #onNamespace(change: Change): void {
    const { metadata } = change.object;
    if (change.deleted) return;
    if (metadata.deletionTimestamp) this.#empty(metadata.name);
    else if (!change.previous) this.#furnish(metadata.name);
  }

  #furnish(namespace: string): void {
    this.#objects.create(
      kindNamed("configmaps"),
      namespace,
      { metadata: { name: "kube-root-ca.crt" }, data: { "ca.crt": this.#caBundle } },
      context,
    );
    const account = {
      metadata: { name: "default" },
      ...(this.#automount !== undefined && { automountServiceAccountToken: this.#automount }),
    };
    this.#objects.create(kindNamed("serviceaccounts"), namespace, account, context);
  }

  #empty(namespace: string): void {
    for (const kind of namespaced) {
      for (const object of this.#objects.list(kind, namespace, {}).items) {
        // Deleting one object may delete others on the way.
        if (this.#objects.storage.get(storageName(kind), objectKey(namespace, object.metadata.name))) {
          this.#objects.delete(kind, namespace, object.metadata.name, {}, context);
        }
      }
    }
    this.#finish(namespace);
  }

  #finish(namespace: string): void {
    const { storage } = this.#objects;
    const found = storage.get("/namespaces", namespace);
    if (!found?.metadata.deletionTimestamp || found.metadata.finalizers?.length) return;
    const isEmpty = namespaced.every(
      (kind) => !storage.list(storageName(kind)).some((object) => object.metadata.namespace === namespace),
    );
    if (isEmpty) storage.delete("/namespaces", namespace);
  }
}

/** Objects outside namespaces, and in `default`, that every cluster has. */
export function createSystemObjects(
  objects: ObjectApi,
  options: { port: number; caBundle: string; volumeDriver?: { name: string } | undefined },
): void {
  if (options.volumeDriver !== undefined) createStorageClass(objects, options.volumeDriver.name);
  // Where kubelets and extension API servers read by which CA clients of the cluster are known.
  objects.create(
    kindNamed("configmaps"),
    "kube-system",
    { metadata: { name: "extension-apiserver-authentication" }, data: { "client-ca-file": options.caBundle } },
    context,
  );
  const priority = kinds.find((kind) => kind.resource === "priorityclasses")!;
  for (const [name, value] of [
    ["system-node-critical", 2_000_001_000],
    ["system-cluster-critical", 2_000_000_000],
  ] as const) {
    objects.create(priority, undefined, { apiVersion: apiVersionOf(priority), metadata: { name }, value }, context);
  }
  objects.create(
    kindNamed("services"),
    "default",
    {
      metadata: { name: "kubernetes", labels: { component: "apiserver", provider: "kubernetes" } },
      spec: {
        clusterIP: `${objects.serviceNetwork}.0.1`,
        ports: [{ name: "https", port: 443, targetPort: options.port, protocol: "TCP" }],
      },
    },
    context,
  );
  objects.create(
    kindNamed("endpoints"),
    "default",
    {
      metadata: { name: "kubernetes" },
      subsets: [{ addresses: [{ ip: "127.0.0.1" }], ports: [{ name: "https", port: options.port }] }],
    },
    context,
  );
}

/** The class of a driver's volumes, which claims get that name none, and the driver itself. @internal */
export function createStorageClass(objects: ObjectApi, driver: string): void {
  const { csiDrivers, storageClasses } = storageKinds;
  const name = "vmlet";
  objects.create(csiDrivers, undefined, { metadata: { name: driver }, spec: { fsGroupPolicy: "File" } }, context);
  objects.create(
    storageClasses,
    undefined,
    {
      metadata: { name, annotations: { "storageclass.kubernetes.io/is-default-class": "true" } },
      provisioner: driver,
      allowVolumeExpansion: true,
    },
    context,
  );
}
