import { X509Certificate } from "node:crypto";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, test, vi } from "vitest";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { configMapClientCa } from "../../../src/kubelet/certificates/client-ca.ts";
import {
  coversNames,
  fileCertificate,
  selfSignedCertificate,
  signedCertificate,
} from "../../../src/kubelet/certificates/serving.ts";
import { silentLogger as logger } from "../../../src/telemetry/logger.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { createCertificate, generateKeyPair, privateKeyPem, type KeyPair } from "../../../src/util/x509.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const DAY_MS = 86_400_000;
const NAMES = { dnsNames: ["vm-1"], ipAddresses: ["10.0.0.5", "fd00::5"] };

function pair(keys: KeyPair, name = "test", life = [Date.now() - DAY_MS, Date.now() + DAY_MS]) {
  const subject = { commonName: name };
  const cert = createCertificate({
    subject,
    keys,
    altNames: NAMES,
    usages: ["serverAuth"],
    notBeforeMs: life[0]!,
    notAfterMs: life[1]!,
  });
  return { cert, key: privateKeyPem(keys.privateKey) };
}

describe("a certificate from files", () => {
  let dir: string;
  let files: { certFile: string; keyFile: string };
  const write = async ({ cert, key }: { cert?: string; key?: string }) => {
    if (cert !== undefined) await writeFile(files.certFile, cert);
    if (key !== undefined) await writeFile(files.keyFile, key);
  };
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), "vmlet-tls-"));
    files = { certFile: join(dir, "tls.crt"), keyFile: join(dir, "tls.key") };
  });

  test("is read again when it changes", async () => {
    const clock = new VirtualClock();
    await write(pair(generateKeyPair(), "first"));
    const source = await fileCertificate({ ...files, clock, logger, metrics: unusedMetrics() });
    const seen: string[] = [];
    const changed = new Promise<void>((resolve) =>
      source.onChange(({ cert }) => {
        seen.push(new X509Certificate(cert).subject);
        resolve();
      }),
    );
    const stop = new AbortController();
    const running = source.run(stop.signal);
    // It has read the files and waits to do so again.
    await vi.waitFor(() => expect(clock.pending).toBe(1));
    await write(pair(generateKeyPair(), "second"));
    await clock.advance(11_000);
    await changed;
    stop.abort();
    await running;
    expect(seen).toEqual(["CN=second"]);
  });

  test("is kept while only one of the files is new", async () => {
    const clock = new VirtualClock();
    const metrics = unusedMetrics();
    const first = pair(generateKeyPair(), "first");
    await write(first);
    const source = await fileCertificate({ ...files, clock, logger, metrics });
    await write({ cert: pair(generateKeyPair(), "second").cert });
    const stop = new AbortController();
    const running = source.run(stop.signal);
    for (
      let tries = 0;
      (await metrics.serverCertificateRenewErrors.get()).values[0]?.value !== 1 && tries < 1000;
      tries++
    )
      await settle();
    stop.abort();
    await running;
    expect((await metrics.serverCertificateRenewErrors.get()).values[0]?.value).toBe(1);
    expect(source.current()).toEqual(first);
  });

  test("must be usable at the start", async () => {
    await write({ cert: pair(generateKeyPair()).cert, key: pair(generateKeyPair()).key });
    const loading = fileCertificate({ ...files, clock: new VirtualClock(), logger, metrics: unusedMetrics() });
    await expect(loading).rejects.toThrow(/tls\.crt: certificate and key cannot be used together/);
  });
});

describe("a self-signed certificate", () => {
  test("covers every advertised name, and is made anew when they change", async () => {
    const clock = new VirtualClock(Date.now());
    let names = NAMES;
    const source = selfSignedCertificate({
      nodeName: "vm-1",
      names: () => names,
      clock,
      logger,
      metrics: unusedMetrics(),
    });
    const before = coversNames(source.current()!.cert, NAMES);
    names = { dnsNames: ["vm-1", "vm-1.example.com"], ipAddresses: ["10.0.0.6"] };
    const stop = new AbortController();
    const running = source.run(stop.signal);
    await clock.advance(11_000);
    stop.abort();
    await running;
    expect([before, coversNames(source.current()!.cert, names)]).toEqual([true, true]);
  });
});

/** Answers every signing request with the same condition; never signs. */
class FakeSigner implements Kube {
  readonly requests: Record<string, unknown>[] = [];
  condition: object | undefined;

  request<T>(request: KubeRequest): Promise<T> {
    if (request.method === "POST") {
      this.requests.push(request.body as Record<string, unknown>);
      return Promise.resolve({ metadata: { name: `csr-${this.requests.length}` } } as T);
    }
    if (this.condition) return Promise.resolve({ status: { conditions: [this.condition] } } as T);
    return Promise.resolve({ status: {} } as T);
  }

  watch(): never {
    throw new Error("not used");
  }
}

describe("a certificate signed by the cluster", () => {
  test("is asked for as kubelets do", async () => {
    const clock = new VirtualClock(Date.now());
    const kube = new FakeSigner();
    const source = signedCertificate({
      nodeName: "vm-1",
      names: () => NAMES,
      kube,
      clock,
      random: () => 0,
      logger,
      metrics: unusedMetrics(),
    });
    const stop = new AbortController();
    const running = source.run(stop.signal);
    await settle();
    stop.abort();
    await running;
    expect(kube.requests[0]).toMatchObject({
      kind: "CertificateSigningRequest",
      spec: { signerName: "kubernetes.io/kubelet-serving", usages: ["digital signature", "server auth"] },
    });
  });

  test("has a self-signed one in its place until then", () => {
    const clock = new VirtualClock(Date.now());
    const kube = new FakeSigner();
    const source = signedCertificate({
      nodeName: "vm-1",
      names: () => NAMES,
      kube,
      clock,
      random: () => 0,
      logger,
      metrics: unusedMetrics(),
    });
    expect(coversNames(source.current()!.cert, NAMES)).toBe(true);
  });

  test("is asked for again after a refusal, and the refusal is counted", async () => {
    const clock = new VirtualClock(Date.now());
    const kube = new FakeSigner();
    kube.condition = { type: "Denied", message: "no" };
    const metrics = unusedMetrics();
    const source = signedCertificate({
      nodeName: "vm-1",
      names: () => NAMES,
      kube,
      clock,
      random: () => 0,
      logger,
      metrics,
    });
    const stop = new AbortController();
    const running = source.run(stop.signal);
    await settle();
    await clock.advance(31_000);
    stop.abort();
    await running;
    expect(kube.requests).toHaveLength(2);
    expect((await metrics.serverCertificateRenewErrors.get()).values[0]?.value).toBe(2);
  });
});

describe("the cluster's client CA", () => {
  const ca = () => pair(generateKeyPair()).cert;

  test("is read from the ConfigMap, read again, and kept when it vanishes", async () => {
    const clock = new VirtualClock();
    let data: Record<string, string> | undefined = { "client-ca-file": ca() };
    const kube: Kube = {
      request: <T>() => Promise.resolve({ data } as T),
      watch: () => {
        throw new Error("not used");
      },
    };
    const stop = new AbortController();
    const source = await configMapClientCa({ kube, clock, logger, signal: stop.signal });
    const first = source.current();
    const running = source.run(stop.signal);
    data = { "client-ca-file": ca() };
    await clock.advance(61_000);
    const second = source.current();
    data = undefined;
    await clock.advance(61_000);
    stop.abort();
    await running;
    expect([first === second, source.current() === second, second === undefined]).toEqual([false, true, false]);
  });

  test("may be missing: then there is none", async () => {
    const kube: Kube = {
      request: () => Promise.reject(new Error("forbidden")),
      watch: () => {
        throw new Error("not used");
      },
    };
    const source = await configMapClientCa({
      kube,
      clock: new VirtualClock(),
      logger,
      signal: new AbortController().signal,
    });
    expect(source.current()).toBeUndefined();
  });
});
