/** The first ten minutes on a machine that has nothing but Node: plain processes, and stand-ins for images. */
import { newcomerSuite } from "./newcomer.ts";

newcomerSuite({
  flags: ["--engine", "process"],
  surroundings: () => Promise.resolve({}),
  toldOfMachines: "Machines are plain processes of this machine, without isolation.",
  toldOfWeb: "stands in for image",
});
