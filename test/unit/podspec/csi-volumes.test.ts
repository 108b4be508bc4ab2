import { beforeEach, describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodCsiVolumes } from "../../../src/podspec/references/csi-volumes.ts";
import type { CsiLookup, References, TokenWish } from "../../../src/podspec/types.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { FakeKube } from "./fake-kube.ts";
import { podWith, secret } from "./fixtures.ts";

const { signal } = new AbortController();
const PATH = "/apis/storage.k8s.io/v1/csidrivers/csi.example.com";
const ATTRIBUTE = "csi.storage.k8s.io/serviceAccount.tokens";

const podOf = (csi: object = {}): Pod =>
  podWith({
    serviceAccountName: "robot",
    volumes: [{ name: "data", csi: { driver: "csi.example.com", ...csi } }],
    containers: [{ name: "app", image: "i", volumeMounts: [{ name: "data", mountPath: "/data" }] }],
  });

describe("an inline volume of a CSI driver", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let changed: string[];
  let wished: TokenWish[];
  let volumes: PodCsiVolumes;
  let secrets: References["secrets"];
  /** The CSIDriver's; undefined: there is none. */
  let spec: Record<string, unknown> | undefined;

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    changed = [];
    wished = [];
    secrets = new Map();
    spec = { volumeLifecycleModes: ["Persistent", "Ephemeral"], fsGroupPolicy: "ReadWriteOnceWithFSType" };
    kube.intercept = ({ path }) => {
      if (path !== PATH) return undefined;
      return spec && { metadata: { name: "csi.example.com" }, spec };
    };
    const issueOne = (_pod: Pod, wish: TokenWish) => {
      wished.push(wish);
      return Promise.resolve({ token: `t-${wish.audience}`, expirationTimestamp: "2030-01-01T00:00:00Z" });
    };
    const onChange = (uid: string) => void changed.push(uid);
    volumes = new PodCsiVolumes({ kube, clock, random: () => 0, tokens: { issueOne }, onChange });
  });

  const read = async (pod = podOf()): Promise<CsiLookup | undefined> =>
    (await volumes.read(pod, { secrets }, signal)).get("data");
  const readVolume = async (csi: object = {}) => {
    const found = await read(podOf(csi));
    return found?.kind === "found" ? found.volume : found;
  };
  const waitsFor = (message: string) => ({ kind: "waiting", message });

  test("is what the pod says of it", async () => {
    expect(await readVolume({ fsType: "ext4", readOnly: true, volumeAttributes: { share: "a" } })).toEqual({
      type: "csi",
      driver: "csi.example.com",
      fs_type: "ext4",
      read_only: true,
      attributes: { share: "a" },
    });
    await clock.advance(60_000);
    expect(changed).toEqual([]);
  });

  test("that no container uses is not asked for", async () => {
    const pod = podWith({ volumes: [{ name: "data", csi: { driver: "csi.example.com" } }] });
    expect(await volumes.read(pod, { secrets }, signal)).toEqual(new Map());
    expect(kube.requests).toEqual([]);
  });

  test("tells of the pod where the driver asks for that, whatever the pod's attributes say", async () => {
    spec = { ...spec, podInfoOnMount: true };
    const attributes = { "csi.storage.k8s.io/pod.name": "forged", share: "a" };
    expect(await readVolume({ volumeAttributes: attributes })).toMatchObject({
      attributes: {
        share: "a",
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "shop",
        "csi.storage.k8s.io/pod.uid": "0a1b",
        "csi.storage.k8s.io/serviceAccount.name": "robot",
        "csi.storage.k8s.io/ephemeral": "true",
      },
    });
  });

  test.each([
    [undefined, "secret_attributes"],
    [true, "secrets"],
  ])("has the tokens that the driver asks for; in its secrets: %s", async (serviceAccountTokenInSecrets, where) => {
    const tokenRequests = [{ audience: "vault", expirationSeconds: 600 }, { audience: "" }];
    spec = { ...spec, tokenRequests, serviceAccountTokenInSecrets };
    const found = await read();
    const ends = { expirationTimestamp: "2030-01-01T00:00:00Z" };
    const told = JSON.stringify({ vault: { token: "t-vault", ...ends }, "": { token: "t-", ...ends } });
    expect(found).toMatchObject({ tokens: ["t-vault", "t-"], volume: { [where]: { [ATTRIBUTE]: told } } });
    expect(wished.map(({ expirationSeconds }) => expirationSeconds)).toEqual([600, 3600]);
  });

  test("has the keys of its Secret", async () => {
    secrets = new Map([["login", secret({ user: "u", key: "k" })]]);
    expect(await readVolume({ nodePublishSecretRef: { name: "login" } })).toMatchObject({
      secrets: { user: "u", key: "k" },
    });
  });

  test.each([
    ["None", "ext4", false],
    ["File", undefined, true],
    ["ReadWriteOnceWithFSType", "ext4", true],
    ["ReadWriteOnceWithFSType", undefined, false],
  ])("is given to the pod's group by policy %s with type %s: %s", async (fsGroupPolicy, fsType, isApplied) => {
    spec = { ...spec, fsGroupPolicy };
    expect(await readVolume({ fsType })).toEqual(
      expect.objectContaining(isApplied ? { apply_group: true } : { type: "csi" }),
    );
    expect("apply_group" in ((await readVolume({ fsType })) ?? {})).toBe(isApplied);
    expect("apply_group" in ((await readVolume({ fsType, readOnly: true })) ?? {})).toBe(false);
  });

  test("waits for its Secret", async () => {
    secrets = new Map([["login", { kind: "absent" }]]);
    expect(await read(podOf({ nodePublishSecretRef: { name: "login" } }))).toEqual(
      waitsFor('fetching NodePublishSecretRef shop/login failed: secrets "login" not found'),
    );
  });

  test("waits for a CSIDriver that lets it be inline, and is looked for again", async () => {
    spec = { volumeLifecycleModes: ["Persistent"] };
    const refused = 'volume mode "Ephemeral" not supported by driver csi.example.com';
    expect(await read()).toEqual(waitsFor(`${refused} (only supports ["Persistent"])`));
    kube.intercept = () => {
      throw apiError(404, "NotFound", { details: { kind: "csidrivers", name: "csi.example.com" } });
    };
    expect(await read()).toEqual(waitsFor(`${refused} (no CSIDriver object)`));
    await clock.advance(60_000);
    expect(changed).toContain("0a1b");
    volumes.release("0a1b");
  });
});
