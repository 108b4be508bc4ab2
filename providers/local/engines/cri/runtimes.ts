/** The runtimes of a containerd of the backend's own, which RuntimeClasses name by their handlers. */
import { findTool } from "../../host/command.ts";

interface ContainerdRuntime {
  /** That of RuntimeClasses. */
  handler: string;
  /** As containerd has it: `io.containerd.NAME.VERSION`. */
  type: string;
}

/** Sandboxes with a kernel of their own, where the host has their programs. */
const KNOWN = [
  { handler: "runsc", type: "io.containerd.runsc.v1", programs: ["runsc"] },
  { handler: "kata", type: "io.containerd.kata.v2", programs: [] },
];

/** Those besides runc. @param named types by handler, of the backend's file: there whatever the host has */
export function runtimesOf(named: Readonly<Record<string, string>>): ContainerdRuntime[] {
  const found = KNOWN.filter(
    ({ handler, type, programs }) =>
      named[handler] === undefined && [shimOf(type), ...programs].every((program) => findTool(program) !== undefined),
  );
  return [
    ...Object.entries(named).map(([handler, type]) => ({ handler, type })),
    ...found.map(({ handler, type }) => ({ handler, type })),
  ];
}

/**
 * The program that containerd looks for on the PATH.
 * @throws Error when the type is no such name
 * @see containerd: pkg/shim BinaryName
 */
export function shimOf(type: string): string {
  const match = /^io\.containerd\.([a-z0-9-]+)\.(v[0-9]+)$/.exec(type);
  if (match === null) throw new Error(`"${type}" is no type of a runtime, such as io.containerd.kata.v2`);
  return `containerd-shim-${match[1]}-${match[2]}`;
}
