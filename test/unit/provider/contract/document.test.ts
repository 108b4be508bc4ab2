import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Ajv2020 } from "ajv/dist/2020.js";
import { describe, expect, test } from "vitest";
import {
  isUnicastIp,
  openApiDocument,
  violation,
  type SchemaName,
} from "../../../../src/provider/contract/document.ts";

interface Node {
  $ref?: string;
  description?: string;
  properties?: Record<string, Node>;
  items?: Node;
  oneOf?: Node[];
}

const document = openApiDocument();
const schemas = document.components.schemas;

describe("openapi.yaml", () => {
  test("every schema compiles in strict mode of JSON Schema 2020-12", () => {
    for (const name of Object.keys(schemas)) {
      expect(() => violation("request", name as SchemaName, {}), name).not.toThrow();
      expect(() => violation("reply", name as SchemaName, {}), name).not.toThrow();
    }
  });

  test("is what types.gen.ts was written from: run src/provider/contract/generate.sh after a change", () => {
    const folder = join(import.meta.dirname, "../../../../src/provider/contract");
    const digest = createHash("sha256")
      .update(readFileSync(join(folder, "openapi.yaml")))
      .digest("hex");
    expect(readFileSync(join(folder, "types.gen.ts"), "utf8")).toContain(`// sha256 of openapi.yaml: ${digest}`);
  });

  test("every schema is valid against the meta-schema", () => {
    const ajv = new Ajv2020({ strict: false });
    for (const [name, schema] of Object.entries(schemas)) expect(ajv.validateSchema(schema), name).toBe(true);
  });

  test("every example is valid in both directions", () => {
    let examples = 0;
    for (const [name, schema] of Object.entries(schemas)) {
      for (const example of (schema["examples"] ?? []) as unknown[]) {
        examples++;
        expect(violation("request", name as SchemaName, structuredClone(example)), name).toBeUndefined();
        const read = structuredClone(example);
        expect(violation("reply", name as SchemaName, read), name).toBeUndefined();
        expect(read, `${name}: reading an example loses nothing`).toEqual(example);
      }
    }
    expect(examples).toBeGreaterThanOrEqual(10);
  });

  test("every reference resolves", () => {
    for (const [, target] of JSON.stringify(document).matchAll(/"\$ref":"#\/([^"]+)"/g)) {
      let node: unknown = document;
      for (const segment of target!.split("/")) node = (node as Record<string, unknown>)[segment];
      expect(node, target).toBeDefined();
    }
  });

  test("says what each field of a specification means, in its place or in what it refers to", () => {
    const untold: string[] = [];
    const seen = new Set<string>();
    const visit = (node: Node | undefined, path: string) => {
      if (node === undefined) return;
      const name = node.$ref?.split("/").at(-1);
      if (name !== undefined && !seen.has(name)) {
        seen.add(name);
        visit(schemas[name], name);
      }
      for (const [key, child] of Object.entries(node.properties ?? {})) {
        const target = child.$ref === undefined ? undefined : (schemas[child.$ref.split("/").at(-1)!] as Node);
        if ((child.description ?? target?.description) === undefined) untold.push(`${path}.${key}`);
        visit(child, `${path}.${key}`);
      }
      visit(node.items, `${path}[]`);
      for (const variant of node.oneOf ?? []) visit(variant, path);
    };
    visit(schemas["MachineSpec"], "MachineSpec");
    expect(untold).toEqual([]);
  });

  test("every operation has an id, a summary, a description, a tag and the error reply", () => {
    for (const [path, item] of Object.entries(document.paths)) {
      for (const method of ["get", "put", "post", "patch", "delete"]) {
        const operation = item[method] as Record<string, unknown> | undefined;
        if (operation === undefined) continue;
        for (const field of ["operationId", "summary", "description", "tags"])
          expect(operation[field], `${method} ${path} ${field}`).toBeTruthy();
        expect((operation["responses"] as Record<string, unknown>)["default"], `${method} ${path}`).toEqual({
          $ref: "#/components/responses/Error",
        });
        if ((operation["tags"] as string[]).includes("gated"))
          expect(operation["x-capability"], `${method} ${path}`).toBeTruthy();
        if (operation["requestBody"])
          expect((operation["requestBody"] as Record<string, unknown>)["x-unknown-fields"]).toBe("reject");
      }
    }
  });
});

const spec = { labels: {}, restart_policy: "never", containers: [{ name: "c", image: "i" }] };

describe("a request", () => {
  test.each([
    ["an unknown field", { ...spec, colour: "red" }, "colour"],
    [
      "an unknown field of a container",
      { ...spec, containers: [{ name: "c", image: "i", cpu: 1 }] },
      "containers.0.cpu",
    ],
    ["no containers", { ...spec, containers: [] }, "containers"],
    ["no image", { ...spec, containers: [{ name: "c" }] }, "containers.0.image"],
    ["a container name that is a path", { ...spec, containers: [{ name: "../c", image: "i" }] }, "containers.0.name"],
    ["a restart policy from Kubernetes", { ...spec, restart_policy: "Never" }, "restart_policy"],
    [
      "a file that climbs out of its volume",
      {
        ...spec,
        volumes: [
          { name: "v", type: "files", version: "1", files: [{ path: "a/../../b", mode: 420, content_b64: "" }] },
        ],
      },
      "volumes.0.files.0.path",
    ],
    [
      "an absolute file",
      {
        ...spec,
        volumes: [{ name: "v", type: "files", version: "1", files: [{ path: "/b", mode: 420, content_b64: "" }] }],
      },
      "volumes.0.files.0.path",
    ],
    [
      "content that is not base64",
      {
        ...spec,
        volumes: [{ name: "v", type: "files", version: "1", files: [{ path: "b", mode: 420, content_b64: "?" }] }],
      },
      "volumes.0.files.0.content_b64",
    ],
    ["an unknown kind of volume", { ...spec, volumes: [{ name: "v", type: "iscsi" }] }, "volumes.0"],
    [
      "a field of another kind of volume",
      { ...spec, volumes: [{ name: "v", type: "host_path", path: "/", medium: "disk" }] },
      "volumes.0.medium",
    ],
    [
      "a fraction of a byte",
      { ...spec, resources: { limits: { memory_bytes: 0.5 } } },
      "resources.limits.memory_bytes",
    ],
  ])("with %s is refused and the field is named", (_case, body, field) => {
    expect(violation("request", "MachineSpec", body)?.field).toBe(field);
  });

  test("may carry fields whose name starts with x-", () => {
    expect(violation("request", "MachineSpec", { ...spec, "x-pod": { any: "thing" } })).toBeUndefined();
  });
});

describe("isUnicastIp", () => {
  test.each(["10.0.0.1", "127.0.0.1", "192.168.1.255", "fd00::1", "2001:db8::7", "::1"])("accepts %s", (ip) =>
    expect(isUnicastIp(ip)).toBe(true),
  );
  test.each([
    "",
    "x",
    "0.0.0.0",
    "169.254.169.254",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "ff02::1",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "10.0.0.1/8",
    "010.0.0.1",
  ])("refuses %s", (ip) => expect(isUnicastIp(ip)).toBe(false));
});

describe("what is wrong is said in words", () => {
  test.each([
    ["Info", { api: "v2" }, "api", 'must be "v1"'],
    ["Time", "2026-10-06T02:17:09+02:00", "", "must be a time in UTC such as 2026-10-06T00:17:09.669Z"],
    ["FileEntry", { path: "a", mode: 420, content_b64: "?" }, "content_b64", "must be base64"],
  ] as const)("of %s", (name, part, field, message) => {
    const info = { name: "mine", version: "1", capabilities: [], os: "linux", architecture: "amd64" };
    expect(violation("reply", name as SchemaName, name === "Info" ? { ...info, ...(part as object) } : part)).toEqual({
      field,
      message,
    });
  });
});
