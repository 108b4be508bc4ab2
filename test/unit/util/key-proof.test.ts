import { createPrivateKey, createPublicKey } from "node:crypto";
import { mkdtempDisposable, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createKeyWithProof } from "../../../src/util/key-proof.ts";
import { runCommand } from "../../e2e/harness/exec.ts";

test.each([
  ["RSA3072", { type: "rsa", detail: { modulusLength: 3072 } }],
  ["RSA4096", { type: "rsa", detail: { modulusLength: 4096 } }],
  ["ECDSAP256", { type: "ec", detail: { namedCurve: "prime256v1" } }],
  ["ECDSAP384", { type: "ec", detail: { namedCurve: "secp384r1" } }],
  ["ECDSAP521", { type: "ec", detail: { namedCurve: "secp521r1" } }],
  ["ED25519", { type: "ed25519", detail: {} }],
])("a key of type %s is proven by a request that openssl verifies", async (keyType, expected) => {
  const { privateKey, proof } = await createKeyWithProof(keyType);
  const key = createPrivateKey(privateKey);
  expect({ type: key.asymmetricKeyType, detail: key.asymmetricKeyDetails }).toMatchObject(expected);
  await using folder = await mkdtempDisposable(join(tmpdir(), "vmlet-proof-"));
  const file = join(folder.path, "request.der");
  await writeFile(file, proof);
  const { stdout } = await runCommand("openssl", [
    "req",
    "-inform",
    "DER",
    "-in",
    file,
    "-verify",
    "-noout",
    "-pubkey",
  ]);
  expect(stdout).toBe(createPublicKey(key).export({ type: "spki", format: "pem" }));
});

test.each(["RSA2048", "", "toString"])("there is no key type %j", async (keyType) => {
  await expect(createKeyWithProof(keyType)).rejects.toThrow(
    `unknown key type ${JSON.stringify(keyType)}; known are RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521, ED25519`,
  );
});
