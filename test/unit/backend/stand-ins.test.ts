/** What engine process runs in the place of an image. */
import { expect, test } from "vitest";
import { standInFor } from "../../../providers/local/engines/process/stand-ins.ts";

const place = { address: "127.64.0.9", portFile: (port: number) => `/machine/port-${port}` };
const standIn = (image: string, args?: string[]) => standInFor({ image, ...(args && { args }) }, place);

test.each([
  "nginx",
  "nginx:1.27-alpine",
  "docker.io/library/nginx:1.27",
  "127.0.0.1:5000/nginx",
  `nginx@sha256:${"0".repeat(64)}`,
  `mirror.example:5000/library/nginx:1@sha256:${"0".repeat(64)}`,
  "httpd:2.4",
  "caddy",
])("%s is a web server on port 80 of the machine's address", (image) => {
  const { argv, message } = standIn(image);
  expect(argv.slice(2)).toEqual([image, "127.64.0.9", "80", "/machine/port-80"]);
  expect(message).toBe(`Engine process has no images: a small web server on port 80 stands in for image "${image}"`);
});

test.each(["busybox", "busybox:1.36", "alpine:3", "registry.k8s.io/e2e-test-images/busybox:1.29", "debian", "ubuntu"])(
  "%s is a shell",
  (image) => {
    const { argv, message } = standIn(image);
    expect(argv[0]).toBe("sh");
    expect(message).toContain("a shell of this host stands in");
  },
);

test.each(["registry.k8s.io/pause:3.9", "example.com/shop", "my-nginx", "nginx/shop", "constructor", ":", ""])(
  "%o, which nothing is known of, is a sleep without end",
  (image) => {
    expect(standIn(image).argv).toEqual(["sleep", "infinity"]);
    expect(standIn(image).message).toContain("a sleep without end stands in");
  },
);

test.each(["nginx", "busybox", "example.com/shop"])("args of %s that are a command are run", (image) => {
  const { argv, message } = standIn(image, ["echo", "-n", "hello"]);
  expect(argv).toEqual(["echo", "-n", "hello"]);
  expect(message).toContain("a program of this host, named by the container's args, stands in");
});

test.each([{ args: ["--leader-elect"] }, { args: [""] }, { args: [] }])(
  "$args name no command, so the stand-in of the image runs",
  ({ args }) => {
    expect(standIn("example.com/shop", args).argv).toEqual(["sleep", "infinity"]);
  },
);
