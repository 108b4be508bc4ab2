import { execFile } from "node:child_process";
import { X509Certificate } from "node:crypto";
import { isIPv6 } from "node:net";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createCertificate, createSigningRequest, generateKeyPair, ipBytes } from "../../../src/util/x509.ts";

const NAMES = { dnsNames: ["vm-1", "vm-1.example.com"], ipAddresses: ["10.0.0.5", "fd00::5"] };

describe("certificates", () => {
  test("say who, for what and how long", () => {
    const keys = generateKeyPair();
    const certificate = new X509Certificate(
      createCertificate({
        subject: { commonName: "system:node:vm-1", organizations: ["system:nodes"] },
        keys,
        altNames: NAMES,
        usages: ["serverAuth"],
        notBeforeMs: Date.parse("2026-01-01T00:00:00Z"),
        notAfterMs: Date.parse("2051-01-01T00:00:00Z"),
      }),
    );
    expect(certificate.subject).toBe("O=system:nodes\nCN=system:node:vm-1");
    expect(certificate.subjectAltName).toBe(
      "DNS:vm-1, DNS:vm-1.example.com, IP Address:10.0.0.5, IP Address:FD00:0:0:0:0:0:0:5",
    );
    expect(certificate.keyUsage).toEqual(["1.3.6.1.5.5.7.3.1"]);
    expect([certificate.validFromDate.toISOString(), certificate.validToDate.toISOString()]).toEqual([
      "2026-01-01T00:00:00.000Z",
      "2051-01-01T00:00:00.000Z",
    ]);
    expect(certificate.verify(keys.publicKey)).toBe(true);
  });

  test("of a CA verify by its key and name", () => {
    const [caKeys, keys] = [generateKeyPair(), generateKeyPair()];
    const life = { notBeforeMs: Date.now() - 1000, notAfterMs: Date.now() + 1000_000 };
    const subject = { commonName: "ca" };
    const ca = new X509Certificate(createCertificate({ subject, keys: caKeys, isCa: true, ...life }));
    const issuer = { subject, privateKey: caKeys.privateKey };
    const leaf = new X509Certificate(createCertificate({ subject: { commonName: "leaf" }, keys, issuer, ...life }));
    expect([ca.ca, leaf.checkIssued(ca), leaf.verify(caKeys.publicKey)]).toEqual([true, true, true]);
  });
});

describe("signing requests", () => {
  test("are read and verified by openssl", async ({ skip }) => {
    const request = createSigningRequest({
      subject: { commonName: "system:node:vm-1", organizations: ["system:nodes"] },
      keys: generateKeyPair(),
      altNames: NAMES,
    });
    const text = await openssl(["req", "-verify", "-noout", "-text"], request);
    if (text === undefined) return skip("openssl is not installed");
    expect(text).toContain("Subject: O = system:nodes, CN = system:node:vm-1");
    expect(text).toContain("DNS:vm-1, DNS:vm-1.example.com, IP Address:10.0.0.5, IP Address:FD00:0:0:0:0:0:0:5");
  });
});

describe("ipBytes", () => {
  test.each([
    ["10.0.0.255", "0a0000ff"],
    ["::1", "00000000000000000000000000000001"],
    ["fd00::", "fd000000000000000000000000000000"],
    ["2001:db8::a:0:1", "20010db8000000000000000a00000001"],
    ["::ffff:10.0.0.1", "00000000000000000000ffff0a000001"],
  ])("of %s are %s", (address, hex) => {
    expect(ipBytes(address).toString("hex")).toBe(hex);
  });

  test("of any IPv6 address are its groups", () => {
    fc.assert(
      fc.property(
        fc.ipV6().filter((address) => isIPv6(address)),
        (address) => {
          expect(ipBytes(address)).toHaveLength(16);
        },
      ),
    );
  });

  test.each(["", "vm-1", "1.2.3", "fe80::1%eth0"])("of %j do not exist", (address) => {
    expect(() => ipBytes(address)).toThrow(RangeError);
  });
});

/** Standard output, or undefined where there is no openssl. */
function openssl(args: string[], input: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const child = execFile("openssl", args, (error, stdout) => {
      if (error && "code" in error && error.code === "ENOENT") resolve(undefined);
      else if (error) reject(error);
      else resolve(stdout);
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
  });
}
