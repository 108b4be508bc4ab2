#!/bin/sh
# Writes types.gen.ts from openapi.yaml. The generator's peer is TypeScript 5, so it runs in an installation of its own.
set -eu
cd "$(dirname "$0")"
npx -y -p openapi-typescript@7.13.0 -p typescript@5.9.3 openapi-typescript openapi.yaml --output types.gen.ts
echo "// sha256 of openapi.yaml: $(sha256sum openapi.yaml | cut -d ' ' -f 1)" >> types.gen.ts
../../../node_modules/.bin/oxfmt types.gen.ts
