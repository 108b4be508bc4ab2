/** Which machines have access to the backend's host. */
import { describe, expect, test } from "vitest";
import { ownsHost, requireHostAccess, reservedFor } from "../../../providers/local/bundle/host-access.ts";
import { engineSchema } from "../../../providers/local/engines/index.ts";
import { LABEL_NAMESPACE } from "../../../src/provider/owner.ts";
import { machineSpec } from "../../support/builders.ts";

const inNamespace = (namespace: string) =>
  machineSpec({ labels: { [LABEL_NAMESPACE]: namespace }, host: { network: true } });

describe("access to the host", () => {
  test("is had in the namespaces that are named, and in no other", () => {
    const access = { namespaces: ["kube-system", "monitoring"] };
    expect(ownsHost(inNamespace("monitoring"), access)).toBe(true);
    expect(ownsHost(inNamespace("shop"), access)).toBe(false);
    expect(() => requireHostAccess(inNamespace("shop"), access)).toThrow(
      'host_network would reach beyond the machine into this host, and engine.host does not name the namespace "shop"',
    );
  });

  test("is had by all where every namespace is named", () => {
    const access = { namespaces: ["*"] };
    expect(ownsHost(inNamespace("shop"), access)).toBe(true);
    expect(() => requireHostAccess(inNamespace("shop"), access)).not.toThrow();
    // The verb `host` is asked for by that: all namespaces are not all clients.
    expect(reservedFor(access, { allowPrivileged: true })).toMatchObject({ namespaces: ["*"] });
  });

  test("is had by nobody where none is", () => {
    expect(ownsHost(inNamespace("kube-system"), undefined)).toBe(false);
    expect(() => requireHostAccess(inNamespace("kube-system"), undefined)).toThrow("does not name the namespace");
  });

  test.each([
    ["kube-system", true],
    ["*", true],
    ["kube-*", false],
    ["Kube", false],
    ["", false],
  ])("namespace %j in the configuration: %s", (namespace, isGood) => {
    expect(engineSchema.safeParse({ type: "cri", host: { namespaces: [namespace] } }).success).toBe(isGood);
  });
});
