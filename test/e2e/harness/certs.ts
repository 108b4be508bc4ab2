/** A throw-away certificate authority, by the `openssl` command. Keys are P-256: fast to make, accepted everywhere. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { runCommand } from "./exec.ts";

export interface KeyPair {
  certFile: string;
  keyFile: string;
}

export interface CertificateAuthority extends KeyPair {
  /** A client certificate: the API server takes the common name for the user and the organizations for the groups. */
  client(name: string, subject: { commonName: string; organizations?: readonly string[] }): Promise<KeyPair>;
  /** A serving certificate; each name is a DNS name or an IP address. */
  server(name: string, names: readonly string[]): Promise<KeyPair>;
}

const validity = ["-days", "2"];

/** Makes `NAME.crt` and `NAME.key` of a new CA in `dir`, and later its leaves beside them. */
export async function createAuthority(dir: string, name: string): Promise<CertificateAuthority> {
  const ca: KeyPair = { certFile: join(dir, `${name}.crt`), keyFile: join(dir, `${name}.key`) };
  await openssl(["req", "-x509", ...newKey(ca.keyFile), "-subj", `/CN=${name}`, ...validity, "-out", ca.certFile]);

  const leaf = async (leafName: string, subject: string, extensions: string): Promise<KeyPair> => {
    const pair: KeyPair = { certFile: join(dir, `${leafName}.crt`), keyFile: join(dir, `${leafName}.key`) };
    const request = join(dir, `${leafName}.csr`);
    const extensionFile = join(dir, `${leafName}.ext`);
    await writeFile(extensionFile, extensions);
    await openssl(["req", ...newKey(pair.keyFile), "-subj", subject, "-out", request]);
    const signed = [
      "-CA",
      ca.certFile,
      "-CAkey",
      ca.keyFile,
      "-CAserial",
      join(dir, `${leafName}.srl`),
      "-CAcreateserial",
    ];
    await openssl([
      "x509",
      "-req",
      "-in",
      request,
      ...signed,
      ...validity,
      "-extfile",
      extensionFile,
      "-out",
      pair.certFile,
    ]);
    return pair;
  };

  return {
    ...ca,
    client: (leafName, { commonName, organizations = [] }) =>
      leaf(
        leafName,
        `${organizations.map((organization) => `/O=${organization}`).join("")}/CN=${commonName}`,
        "keyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth\n",
      ),
    server: (leafName, names) => {
      const alternatives = names.map((each) => (/^[\d.]+$|:/.test(each) ? `IP:${each}` : `DNS:${each}`)).join(",");
      return leaf(
        leafName,
        `/CN=${names[0] ?? leafName}`,
        `keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\nsubjectAltName=${alternatives}\n`,
      );
    },
  };
}

/** The pair that signs service-account tokens: the private key, and the public half as a file. */
export async function createSigningKey(
  dir: string,
  name: string,
): Promise<{ privateKeyFile: string; publicKeyFile: string }> {
  const files = { privateKeyFile: join(dir, `${name}.key`), publicKeyFile: join(dir, `${name}.pub`) };
  await openssl(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", files.privateKeyFile]);
  await openssl(["pkey", "-in", files.privateKeyFile, "-pubout", "-out", files.publicKeyFile]);
  return files;
}

function newKey(keyFile: string): string[] {
  return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", keyFile];
}

async function openssl(args: string[]): Promise<void> {
  await runCommand("openssl", args);
}
