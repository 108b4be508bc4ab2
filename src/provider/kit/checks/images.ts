/** Images that are kept ready: what is said of them holds for the machines that count on it. */
import type { PrewarmedImage } from "../../image.ts";
import type { Check } from "../check.ts";
import { FOREVER, summary, type CheckContext } from "../context.ts";

const NEEDS = ["images.prewarm"] as const;
const NOWHERE = "registry.invalid/vmlet/no-such-image:none";
const PASSWORD = "conformance-password";

const imagesOf = (context: CheckContext) => context.provider.images!;
/** That of the kit's containers. */
const ownImage = (context: CheckContext) => context.container("").image;

const kept = (context: CheckContext, name: string, image = ownImage(context)): Promise<PrewarmedImage> =>
  imagesOf(context).create(context.imageId(), { labels: context.labelsOf(name), image }, { signal: context.signal });

async function untilState(context: CheckContext, id: string, state: PrewarmedImage["state"]): Promise<PrewarmedImage> {
  let image: PrewarmedImage | undefined;
  await context.untilTrue(`image ${id} to be ${state}`, async () => {
    image = await imagesOf(context).get(id, { signal: context.signal });
    return image.state === state;
  });
  return image!;
}

const listed = (context: CheckContext, name: string): Promise<PrewarmedImage[]> =>
  imagesOf(context).list({ labels: context.labelsOf(name), signal: context.signal });

export const IMAGE_CHECKS: readonly Check[] = [
  {
    name: "images/ready-is-here",
    why: "It is kept so that a machine begins at once, also while its registry is away.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const { id } = await kept(context, "ready");
      await untilState(context, id, "ready");
      const { id: machine } = await context.create("", {
        labels: context.labelsOf("ready"),
        containers: [context.container(FOREVER, { pull_policy: "never" })],
      });
      const seen = await context.until(machine, "it to run or to miss its image", ({ containers: [main] }) =>
        [main?.state === "running", main?.reason?.startsWith("ErrImage")].includes(true),
      );
      context.expect(
        seen.containers[0]?.state === "running",
        "a machine that may pull nothing to run with an image that is ready",
        `it is ${summary(seen)}`,
      );
    },
  },
  {
    name: "images/replays-keep-one",
    why: "A client whose reply was lost asks again.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const first = await kept(context, "replays");
      const { id, image, labels, created_at } = first;
      const again = await imagesOf(context).create(id, { image, labels }, { signal: context.signal });
      context.expect(again.created_at === created_at, `the image of ${created_at}`, `it is one of ${again.created_at}`);
      const all = await listed(context, "replays");
      context.expect(all.length === 1, "one image in the list", `there are ${all.length}`);
    },
  },
  {
    name: "images/an-id-has-one-image",
    why: "Who finds the id ready would count on an image that is not here.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const { id, labels } = await kept(context, "other");
      const options = { signal: context.signal };
      await context.expectCode(
        imagesOf(context).create(id, { image: NOWHERE, labels }, options),
        "conflict",
        "another image under the same id",
      );
    },
  },
  {
    name: "images/what-cannot-be-had-says-why",
    why: "Nobody could mend a name that is misspelt, or a password.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const { id } = await kept(context, "nowhere", NOWHERE);
      const image = await untilState(context, id, "waiting");
      context.expect(Boolean(image.reason && image.message), "a reason and a message", JSON.stringify(image));
    },
  },
  {
    name: "images/deleted-are-not-kept",
    why: "The disk would never be freed of them.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const { id } = await kept(context, "deleted");
      await imagesOf(context).delete(id, { signal: context.signal });
      await context.expectCode(
        imagesOf(context).get(id, { signal: context.signal }),
        "not_found",
        "an image after its deletion",
      );
      await imagesOf(context).delete(id, { signal: context.signal });
      const all = await listed(context, "deleted");
      context.expect(all.length === 0, "it not to be listed any more", `${all.length} are`);
    },
  },
  {
    name: "images/show-no-secrets",
    why: "Who may look at the list may not have the passwords with which it was filled.",
    needs: NEEDS,
    async run(context: CheckContext) {
      const created = await imagesOf(context).create(
        context.imageId(),
        {
          labels: context.labelsOf("secrets"),
          image: NOWHERE,
          registry_auth: [{ registry: "registry.invalid", username: "u", password: PASSWORD }],
        },
        { signal: context.signal },
      );
      const shown = [created, await untilState(context, created.id, "waiting"), ...(await listed(context, "secrets"))];
      context.expect(!JSON.stringify(shown).includes(PASSWORD), "the password nowhere", "it is shown");
    },
  },
];

export const IMAGE_RESTART_CHECKS: readonly Check[] = [
  {
    name: "images/survive-a-restart",
    why: "What garbage collection is to spare must not depend on how long the backend runs.",
    needs: NEEDS,
    needsRestart: true,
    async run(context: CheckContext) {
      const { id } = await kept(context, "restart");
      await untilState(context, id, "ready");
      await context.restarted();
      const [image] = await listed(context, "restart");
      context.expect(image?.id === id, `image ${id} to be listed still`, "it is not");
      await untilState(context, id, "ready");
    },
  },
];
