/** By which a backend finds again what it has had a runtime make. */
export const LABEL_BACKEND = "dev.vmlet/backend";
export const LABEL_MACHINE = "dev.vmlet/machine";
export const LABEL_CONTAINER = "dev.vmlet/container";
export const LABEL_INSTANCE = "dev.vmlet/instance";
