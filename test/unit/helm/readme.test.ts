/** The values that the READMEs print for an installation, rendered as their reader would. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";
import type { Json } from "../../e2e/harness/client.ts";
import { find, podsOf, render, valuesFile } from "./render.ts";

const root = join(import.meta.dirname, "../../..");

test.each(["README.md", "helm/vmlet/README.md"])(
  "the values in %s render, and every token's file lies in a Secret that is mounted",
  async (readme) => {
    const text = await readFile(join(root, readme), "utf8");
    const block = /```yaml\n(# my-values\.yaml\n[^]*?)```/.exec(text)?.[1];
    const created = [...text.matchAll(/kubectl create secret generic (\S+)/g)].map(([, name]) => name);
    const file = await valuesFile({});
    await writeFile(file, block ?? "");
    const objects = await render(file, ["--set", "clusterId=test"]);

    const agent = podsOf(objects).find(({ owner }) => owner.kind === "Deployment")!.spec;
    const secrets = agent.volumes.filter((volume: Json) => created.includes(volume.secret?.secretName));
    const folders = agent.containers
      .flatMap((container: Json) => container.volumeMounts)
      .filter((mount: Json) => secrets.some((volume: Json) => volume.name === mount.name))
      .map((mount: Json) => mount.mountPath as string);
    const { nodes } = parse(find(objects, "ConfigMap").data["vmlet.yaml"]);
    const tokenFiles = nodes.map((node: Json) => node.provider.tokenFile as string);
    expect(tokenFiles).not.toEqual([]);
    for (const tokenFile of tokenFiles) expect(folders).toContain(tokenFile.slice(0, tokenFile.lastIndexOf("/")));
  },
);
