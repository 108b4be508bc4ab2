/** `vmlet webhook secret`: the certificate that the webhook serves with, for those who have no cert-manager. */
import { Command, InvalidArgumentError } from "commander";
import { stringify } from "yaml";
import { DNS_1123 } from "../resources/names.ts";
import { systemClock } from "../util/clock.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../util/x509.ts";

/** Nobody renews it: it is made again by hand. */
const LIFE_MS = 10 * 365 * 86_400_000;
/** The API server's clock may be behind. */
const EARLY_MS = 3600_000;

export function webhookSecretCommand(): Command {
  return new Command("secret")
    .description("print a Secret with a certificate for the webhook's Service, and the CA that has signed it")
    .argument("<name>", "of the Secret, as in webhook.existingSecret", dnsName)
    .requiredOption("-n, --namespace <namespace>", "of the release", dnsName)
    .option(
      "--service <name>",
      "the webhook's Service: RELEASE-vmlet-webhook, or vmlet-webhook of a release vmlet",
      dnsName,
      "vmlet-webhook",
    )
    .action((name: string, { namespace, service }: { namespace: string; service: string }) => {
      console.log(stringify(secretOf(name, namespace, service, systemClock.now())).trimEnd());
    });
}

/** The CA's key is kept nowhere: it signs this one certificate. @internal */
export function secretOf(name: string, namespace: string, service: string, now: number) {
  const life = { notBeforeMs: now - EARLY_MS, notAfterMs: now + LIFE_MS };
  const authority = { subject: { commonName: `${service}.${namespace} CA` }, keys: generateKeyPair() };
  const keys = generateKeyPair();
  const host = `${service}.${namespace}.svc`;
  const cert = createCertificate({
    ...life,
    subject: { commonName: host },
    keys,
    altNames: { dnsNames: [host], ipAddresses: [] },
    usages: ["serverAuth"],
    issuer: { subject: authority.subject, privateKey: authority.keys.privateKey },
  });
  return {
    apiVersion: "v1",
    kind: "Secret",
    metadata: { name, namespace },
    type: "kubernetes.io/tls",
    stringData: {
      "ca.crt": createCertificate({ ...life, ...authority, isCa: true }),
      "tls.crt": cert,
      "tls.key": privateKeyPem(keys.privateKey),
    },
  };
}

function dnsName(text: string): string {
  if (!DNS_1123.test(text) || text.length > 63)
    throw new InvalidArgumentError("it must be a name of lower-case letters, digits and '-'.");
  return text;
}
