/** Kinds of persistent storage. Claims are in `kinds.ts`: StatefulSets make them where there is no storage as well. */
import { forbiddenField, invalidValue, required, type FieldCause } from "../objects/errors.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { defineKind, statusOnly, text, type Kind } from "./kind.ts";

const GROUP = "storage.k8s.io";
const DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class";

const persistentVolumes = defineKind({
  kind: "PersistentVolume",
  resource: "persistentvolumes",
  namespaced: false,
  shortNames: ["pv"],
  returnsDeleted: true,
  setDefaults(volume) {
    volume.spec ??= {};
    volume.spec.volumeMode ??= "Filesystem";
    volume.spec.persistentVolumeReclaimPolicy ??= "Retain";
    volume.status ??= {};
    volume.status.phase ||= "Pending";
  },
  prepareCreate(volume) {
    volume.status = { phase: "Pending" };
  },
  validate(volume) {
    const causes: FieldCause[] = [];
    if (!volume.spec.accessModes?.length) causes.push(required("spec.accessModes", ""));
    if (!volume.spec.capacity?.storage) causes.push(required("spec.capacity", ""));
    return causes;
  },
  subresources: { status: statusOnly },
});

const storageClasses = defineKind({
  group: GROUP,
  kind: "StorageClass",
  resource: "storageclasses",
  namespaced: false,
  shortNames: ["sc"],
  returnsDeleted: true,
  setDefaults(storageClass) {
    storageClass.reclaimPolicy ??= "Delete";
    storageClass.volumeBindingMode ??= "Immediate";
  },
  validate: (storageClass) => (storageClass["provisioner"] ? [] : [required("provisioner", "")]),
  update: {
    prepare: () => {},
    validate: (next, old) =>
      ["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"]
        .filter((field) => !jsonEqual(next[field], old[field]))
        .map((field) => forbiddenField(field, "updates to parameters are forbidden.")),
  },
});

const volumeAttachments = defineKind({
  group: GROUP,
  kind: "VolumeAttachment",
  resource: "volumeattachments",
  namespaced: false,
  returnsDeleted: true,
  setDefaults(attachment) {
    attachment.status ??= {};
    attachment.status.attached ??= false;
  },
  prepareCreate(attachment) {
    attachment.status = { attached: false };
  },
  validate: ({ spec }) => (spec?.nodeName ? [] : [required("spec.nodeName")]),
  update: {
    prepare(next, old) {
      next.status = old.status;
    },
    validate: (next, old) =>
      jsonEqual(next.spec, old.spec) ? [] : [invalidValue("spec", next.spec, "field is immutable")],
  },
  subresources: { status: statusOnly },
});

const csiDrivers = defineKind({
  group: GROUP,
  kind: "CSIDriver",
  resource: "csidrivers",
  namespaced: false,
  returnsDeleted: true,
  setDefaults(driver) {
    driver.spec ??= {};
    driver.spec.attachRequired ??= true;
    driver.spec.podInfoOnMount ??= false;
    driver.spec.storageCapacity ??= false;
    driver.spec.fsGroupPolicy ??= "ReadWriteOnceWithFSType";
    driver.spec.volumeLifecycleModes ??= ["Persistent"];
    driver.spec.requiresRepublish ??= false;
    driver.spec.seLinuxMount ??= false;
  },
});

/** In the order of discovery, those of the group `storage.k8s.io` around its CSINodes. */
export const storageKinds: {
  persistentVolumes: Kind;
  csiDrivers: Kind;
  storageClasses: Kind;
  volumeAttachments: Kind;
} = { persistentVolumes, csiDrivers, storageClasses, volumeAttachments };

/** Admission: a claim that names no class gets the default one, the newest if there are several. */
export function defaultClass(classes: readonly StoredObject[]): string | undefined {
  const marked = classes.filter(({ metadata }) => metadata.annotations?.[DEFAULT_CLASS] === "true");
  const newest = marked.toSorted((a, b) =>
    text(b.metadata.creationTimestamp).localeCompare(text(a.metadata.creationTimestamp)),
  );
  return newest[0]?.metadata.name;
}

export const CLAIM_PROTECTION = "kubernetes.io/pvc-protection";

/** The claim of a volume of a pod; undefined for a volume of another kind. */
export function claimNameOf(pod: StoredObject, volume: Json): string | undefined {
  if (volume.persistentVolumeClaim) return volume.persistentVolumeClaim.claimName as string;
  return volume.ephemeral ? `${pod.metadata.name}-${volume.name}` : undefined;
}

/** The names of all claims of a pod. */
export function claimNamesOf(pod: StoredObject): string[] {
  return ((pod.spec.volumes ?? []) as Json[]).flatMap((volume) => claimNameOf(pod, volume) ?? []);
}
