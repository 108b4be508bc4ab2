/** The Machine API's table: each path with its method, and the endpoint that serves it. */
import type { AuditedAction } from "./audit.ts";
import { getCapacity, getInfo, getStats } from "./endpoints/backend.ts";
import { getEvents } from "./endpoints/events.ts";
import { deleteImage, getImage, listImages, putImage } from "./endpoints/image.ts";
import { listMachines } from "./endpoints/list.ts";
import { getLogs } from "./endpoints/logs.ts";
import { deleteMachine, getMachine, patchMachine, putMachine, stopMachine } from "./endpoints/machine.ts";
import {
  deleteVolume,
  getVolume,
  getVolumeCapacity,
  listVolumes,
  patchVolume,
  putVolume,
  releaseVolume,
  reserveVolume,
} from "./endpoints/volume.ts";
import { putServices } from "./endpoints/services.ts";
import { deletePodRanges, getPodRanges, putPodRanges } from "./endpoints/pod-ranges.ts";
import type { Endpoint, Route } from "./router.ts";

const route = (method: string, pattern: string, handle: Endpoint, audit?: AuditedAction): Route => ({
  methods: [method],
  pattern,
  handle,
  audit,
});

export const ROUTES: readonly Route[] = [
  route("GET", "/v1/machines/:id", getMachine),
  route("PUT", "/v1/machines/:id", putMachine, "create"),
  route("PATCH", "/v1/machines/:id", patchMachine, "update"),
  route("DELETE", "/v1/machines/:id", deleteMachine, "delete"),
  route("GET", "/v1/machines", listMachines),
  route("POST", "/v1/machines/:id/stop", stopMachine, "stop"),
  route("GET", "/v1/machines/:id/containers/:container/logs", getLogs),
  route("GET", "/v1/volumes", listVolumes),
  route("GET", "/v1/volumes/:id", getVolume),
  route("PUT", "/v1/volumes/:id", putVolume, "create-volume"),
  route("PATCH", "/v1/volumes/:id", patchVolume, "resize-volume"),
  route("DELETE", "/v1/volumes/:id", deleteVolume, "delete-volume"),
  route("PUT", "/v1/volumes/:id/reservations/:reservation", reserveVolume, "reserve-volume"),
  route("DELETE", "/v1/volumes/:id/reservations/:reservation", releaseVolume, "release-volume"),
  route("GET", "/v1/volume-capacity", getVolumeCapacity),
  route("GET", "/v1/images", listImages),
  route("GET", "/v1/images/:id", getImage),
  route("PUT", "/v1/images/:id", putImage, "create-image"),
  route("DELETE", "/v1/images/:id", deleteImage, "delete-image"),
  route("GET", "/v1/pod-ranges", getPodRanges),
  route("PUT", "/v1/pod-ranges", putPodRanges, "tell-ranges"),
  route("DELETE", "/v1/pod-ranges", deletePodRanges, "give-back-ranges"),
  route("PUT", "/v1/services", putServices, "tell-services"),
  route("GET", "/v1/events", getEvents),
  route("GET", "/v1/stats", getStats),
  route("GET", "/v1/info", getInfo),
  route("GET", "/v1/capacity", getCapacity),
];
