/** Registry credentials are nowhere but in memory: what a backend that is killed has lost, the agent gives it again. */
import { test } from "vitest";
import { containerPlace } from "../../e2e/cases/checklist/suite.ts";
import { containerStatus, Pods, serve } from "../../e2e/cases/pods.ts";
import { startDevEnvironment } from "../../e2e/cases/start.ts";
import { engineOnThisHost } from "../../support/engines.ts";
import { missingForImages } from "../../support/registry.ts";

const { capabilities, missing: lacks } = await engineOnThisHost("oci");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];

const title = "a backend that is killed in the middle of a pull's back-off pulls when it runs again";
test.skipIf(missing.length > 0)(missing.length > 0 ? `${title} (${missing.join(", ")})` : title, async () => {
  const place = await containerPlace("oci", capabilities, false);
  const env = await startDevEnvironment(place.options);
  try {
    const pods = new Pods(env.client, "default", env.nodeName);
    const { image, user } = place.privateImage!;
    const secrets = "/api/v1/namespaces/default/secrets";
    const pullSecret = (password: string) => {
      const auths = { [image.slice(0, image.indexOf("/"))]: { username: user.name, password } };
      return { ".dockerconfigjson": Buffer.from(JSON.stringify({ auths })).toString("base64") };
    };
    await env.client.create(secrets, {
      metadata: { name: "pull" },
      type: "kubernetes.io/dockerconfigjson",
      data: pullSecret("wrong"),
    });
    await pods.create("held", {
      imagePullSecrets: [{ name: "pull" }],
      terminationGracePeriodSeconds: 1,
      containers: [{ name: "main", image, imagePullPolicy: "Always", command: ["/bin/sh", "-c", serve] }],
    });
    await pods.until(
      "held",
      "to back off",
      (pod) => containerStatus(pod, "main")?.state.waiting?.reason === "ImagePullBackOff",
    );
    await env.client.patch(`${secrets}/pull`, { data: pullSecret(user.password) });
    await env.backend.restart("SIGKILL");
    await pods.untilReady("held");
    await pods.deleteAll();
  } finally {
    await env[Symbol.asyncDispose]();
    await place.stop();
  }
});
