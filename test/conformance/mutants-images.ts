/** Backends that break a rule of the images that they keep ready. */
import { isProviderError } from "../../src/provider/errors.ts";
import type { ImageProvider, PrewarmedImage } from "../../src/provider/image.ts";
import type { MemoryProvider } from "../../providers/memory/index.ts";
import { isCase, type Mutant, type World } from "./mutant-kinds.ts";

/** Methods for images in place of the sound ones. */
const keeping = (
  change: (images: ImageProvider, sound: MemoryProvider, world: World) => Partial<ImageProvider>,
): Mutant => ({
  provider: (sound, world) => ({ images: { ...sound.images, ...change(sound.images, sound, world) } }),
});

/** Shows images of this case otherwise than they are. */
const showingImages = (name: string, change: (image: PrewarmedImage) => object): Mutant =>
  keeping((images) => ({
    get: async (id, options) => {
      const image = await images.get(id, options);
      return isCase(image, name) ? { ...image, ...change(image) } : image;
    },
  }));

export const IMAGE_MUTANTS: Record<string, Mutant> = {
  // It has not pulled what it says is ready: a machine that may not pull finds nothing.
  "images/ready-is-here": {
    provider: (sound) => ({
      createPod: (id, spec, options) =>
        sound.createPod(
          id,
          isCase(spec, "ready")
            ? { ...spec, containers: spec.containers.map((each) => ({ ...each, image: "missing.invalid/x" })) }
            : spec,
          options,
        ),
      getPod: async (id, options) => {
        const machine = await sound.getPod(id, options);
        const containers = machine.containers.map((each) => ({ ...each, reason: "ErrImageNeverPull" }));
        return isCase(machine, "ready") ? { ...machine, containers } : machine;
      },
    }),
  },
  "images/replays-keep-one": keeping((images) => {
    let creates = 0;
    return {
      create: async (id, spec, options) => ({
        ...(await images.create(id, spec, options)),
        ...(isCase(spec, "replays") && { created_at: new Date(1_780_000_000_000 + ++creates).toISOString() }),
      }),
    };
  }),
  "images/an-id-has-one-image": keeping((images) => ({
    create: (id, spec, options) =>
      images.create(id, spec, options).catch((thrown: unknown) => {
        if (isCase(spec, "other") && isProviderError(thrown, "conflict")) return images.get(id, options);
        throw thrown;
      }),
  })),
  "images/what-cannot-be-had-says-why": showingImages("nowhere", () => ({ message: "" })),
  "images/deleted-are-not-kept": keeping((images) => ({
    delete: async (id, options) => {
      const image = await images.get(id, options).catch(() => undefined);
      if (image === undefined || !isCase(image, "deleted")) await images.delete(id, options);
    },
  })),
  "images/show-no-secrets": showingImages("secrets", () => ({
    message: "cannot log in as u with conformance-password",
  })),
  "images/survive-a-restart": keeping((images, _sound, world) => ({
    list: async (options) => (world.isRestarted ? [] : await images.list(options)),
  })),
};
