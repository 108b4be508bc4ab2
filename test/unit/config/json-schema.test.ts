/** The JSON Schemas in the package: what an editor says of a file is what the program says. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Ajv } from "ajv";
import { expect, test } from "vitest";

const schemaOf = (name: string): object =>
  JSON.parse(readFileSync(join(import.meta.dirname, "../../../schemas", `${name}.schema.json`), "utf8")) as object;
const validate = (name: string) => new Ajv({ strict: false }).compile(schemaOf(name));

const agent = {
  apiVersion: "vmlet.dev/v1",
  kind: "AgentConfig",
  nodes: [{ name: "a", provider: { type: "http-vm", url: "https://vms" }, capacity: { cpu: 4 } }],
};
const backend = {
  apiVersion: "vmlet.dev/v1",
  kind: "BackendConfig",
  stateDir: "/x",
  listen: { port: 1 },
  tokenFile: "/t",
};

test.each([
  ["agent", agent],
  ["backend", backend],
])("a good file of the %s is valid", (name, file) => {
  expect(validate(name)(file)).toBe(true);
});

test.each<[string, object]>([
  ["agent", { ...agent, logLvl: "info" }],
  ["agent", { ...agent, logLevel: "loud" }],
  ["agent", { ...agent, nodes: [] }],
  ["agent", { ...agent, health: { port: 70_000 } }],
  ["backend", { ...backend, statDir: "/x" }],
  ["backend", { ...backend, listen: { prot: 1 } }],
])("a wrong file of the %s is not: %j", (name, file) => {
  expect(validate(name)(file)).toBe(false);
});
