import { expect, test } from "vitest";
import { allowedHosts, requireOwnPage, requireToken } from "../../../src/ui/guard.ts";

const hosts = allowedHosts(4000);

test.each(["127.0.0.1:4000", "localhost:4000", "[::1]:4000"])("the page may be asked for as %s", (host) => {
  expect(() =>
    requireOwnPage({ host, origin: `http://${host}`, "sec-fetch-site": "same-origin" }, hosts),
  ).not.toThrow();
  expect(() => requireOwnPage({ host, "sec-fetch-site": "none" }, hosts)).not.toThrow();
});

test.each([
  ["a name that was made to lead here", { host: "evil.example:4000" }],
  ["no name", {}],
  ["another port", { host: "127.0.0.1:4001" }],
  ["a name with something behind it", { host: "127.0.0.1:4000.evil.example" }],
  ["another page", { host: "127.0.0.1:4000", origin: "https://evil.example" }],
  ["a page of another port of this host", { host: "127.0.0.1:4000", origin: "http://127.0.0.1:9" }],
  ["a page without an origin", { host: "127.0.0.1:4000", origin: "null" }],
  ["an image in another page", { host: "127.0.0.1:4000", "sec-fetch-site": "cross-site" }],
  ["a page of another port, without an origin", { host: "127.0.0.1:4000", "sec-fetch-site": "same-site" }],
])("%s is refused", (_, headers) => {
  expect(() => requireOwnPage(headers, hosts)).toThrow(expect.objectContaining({ status: 403 }));
});

test("the token is taken from a header, or from a WebSocket's subprotocols", () => {
  expect(() => requireToken({ authorization: "Bearer s3cret" }, "s3cret")).not.toThrow();
  const protocols = "terminal.vmlet.dev, token.vmlet.dev.s3cret";
  expect(() => requireToken({ "sec-websocket-protocol": protocols }, "s3cret")).not.toThrow();
});

test.each([
  ["none", {}],
  ["another", { authorization: "Bearer other" }],
  ["a beginning", { authorization: "Bearer s3cre" }],
  ["one in a cookie", { cookie: "token=s3cret" }],
  ["an empty one", { authorization: "Bearer " }],
])("%s is refused", (_, headers) => {
  expect(() => requireToken(headers, "s3cret")).toThrow(expect.objectContaining({ status: 401 }));
});
