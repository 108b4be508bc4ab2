/**
 * Volumes of the small cluster of `vmlet dev`: the controller of `vmlet csi` in this process, for a cluster that has no
 * sidecars to ask it.
 */
import { create } from "@bufbuild/protobuf";
import {
  CapacityRangeSchema,
  ControllerExpandVolumeRequestSchema,
  ControllerPublishVolumeRequestSchema,
  ControllerUnpublishVolumeRequestSchema,
  CreateVolumeRequestSchema,
  DeleteVolumeRequestSchema,
  type VolumeCapability,
  VolumeCapabilitySchema,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../csi/api.gen.js";
import { Backends } from "../csi/backends.ts";
import { ControllerService } from "../csi/controller.ts";
import type { VolumeAccess, VolumeDriver } from "../devcluster/index.ts";
import { CSI_DRIVER } from "../provider/csi-names.ts";
import type { Provider } from "../provider/provider.ts";

const CALL_MS = 30_000;

/** As csi-provisioner and csi-attacher read them. */
const MODES: Readonly<Record<string, Mode>> = {
  ReadWriteOnce: Mode.SINGLE_NODE_MULTI_WRITER,
  ReadWriteOncePod: Mode.SINGLE_NODE_SINGLE_WRITER,
  ReadOnlyMany: Mode.MULTI_NODE_READER_ONLY,
  ReadWriteMany: Mode.MULTI_NODE_MULTI_WRITER,
};

const call = () => ({ signal: AbortSignal.timeout(CALL_MS) });

function capabilitiesOf({ mode, accessModes }: Pick<VolumeAccess, "mode" | "accessModes">): VolumeCapability[] {
  return accessModes.map((each) =>
    create(VolumeCapabilitySchema, {
      accessMode: { mode: MODES[each] ?? Mode.UNKNOWN },
      accessType: mode === "Block" ? { case: "block", value: {} } : { case: "mount", value: { fsType: "" } },
    }),
  );
}

const capacityOf = (bytes: number) => create(CapacityRangeSchema, { requiredBytes: BigInt(bytes) });

/** @returns undefined for a backend without volumes that outlive machines */
export async function volumeDriverOf(provider: Provider, clusterId: string): Promise<VolumeDriver | undefined> {
  const { capabilities } = await provider.getInfo(call());
  if (!capabilities.includes("volumes.persistent")) return undefined;
  const controller = new ControllerService({ backends: new Backends([provider]), clusterId });
  return {
    name: CSI_DRIVER,
    async create({ name, bytes, claim, parameters, ...access }) {
      const request = create(CreateVolumeRequestSchema, {
        name,
        capacityRange: capacityOf(bytes),
        volumeCapabilities: capabilitiesOf(access),
        parameters: {
          ...parameters,
          "csi.storage.k8s.io/pvc/name": claim.name,
          "csi.storage.k8s.io/pvc/namespace": claim.namespace,
        },
      });
      const { volume } = await controller.createVolume(request, call());
      return { handle: volume.volumeId, bytes: Number(volume.capacityBytes) };
    },
    async delete(volumeId) {
      await controller.deleteVolume(create(DeleteVolumeRequestSchema, { volumeId }), call());
    },
    async publish(volumeId, nodeId, { readOnly, ...access }) {
      const [volumeCapability] = capabilitiesOf(access);
      const request = create(ControllerPublishVolumeRequestSchema, {
        volumeId,
        nodeId,
        readonly: readOnly,
        ...(volumeCapability && { volumeCapability }),
      });
      await controller.controllerPublishVolume(request, call());
    },
    async unpublish(volumeId, nodeId) {
      const request = create(ControllerUnpublishVolumeRequestSchema, { volumeId, nodeId });
      await controller.controllerUnpublishVolume(request, call());
    },
    async expand(volumeId, bytes) {
      const request = create(ControllerExpandVolumeRequestSchema, { volumeId, capacityRange: capacityOf(bytes) });
      return Number((await controller.controllerExpandVolume(request, call())).capacityBytes);
    },
  };
}

/** All of a backend that is for one cluster alone, which is gone. No machine has any of them. */
export async function removeVolumes(provider: Provider): Promise<void> {
  const { capabilities } = await provider.getInfo(call());
  const { volumes } = provider;
  if (volumes === undefined || !capabilities.includes("volumes.persistent")) return;
  const { items } = await volumes.list({ ...call(), labels: {} });
  for (const { id, reservations } of items) {
    for (const { name } of reservations) await volumes.release(id, name, call());
    await volumes.delete(id, call());
  }
}
