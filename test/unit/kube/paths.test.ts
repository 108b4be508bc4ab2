import { expect, test } from "vitest";
import { InvalidNameError, podPath, resourcePath } from "../../../src/kube/paths.ts";

test.each([
  [".", "invalid resource name \".\": [may not be '.']"],
  ["..", "invalid resource name \"..\": [may not be '..']"],
  ["a/b", "invalid resource name \"a/b\": [may not contain '/']"],
  ["%2e%2e", "invalid resource name \"%2e%2e\": [may not contain '%']"],
  ["", 'invalid resource name "": [may not be empty]'],
])("no object has the name %j, as for client-go", (name, message) => {
  const path = () => resourcePath({ resource: "secrets", namespace: "shop", name });
  expect(path).toThrow(InvalidNameError);
  expect(path).toThrow(message);
});

test("a namespace is no way out either", () => {
  expect(() => podPath("..", "web")).toThrow("invalid namespace \"..\": [may not be '..']");
});

test("what has a meaning in a URL is only a name", () => {
  const path = resourcePath({ resource: "secrets", namespace: "shop", name: "a?b#c d" });
  expect(new URL(`https://api${path}`).pathname).toBe("/api/v1/namespaces/shop/secrets/a%3Fb%23c%20d");
});
