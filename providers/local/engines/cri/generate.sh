#!/usr/bin/env bash
# Makes api.gen.js and api.gen.d.ts again: CRI v1's messages and services from k8s.io/cri-api (Apache License 2.0), without
# its comments. Needs Go and npm; nothing of it is installed in the package.
set -euo pipefail
version=v0.36.3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
module=$(go mod download -json "k8s.io/cri-api@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
sed -E '20,$ { /^[[:space:]]*\/\//d; s#[[:space:]]+//.*$## }' "$module/pkg/apis/runtime/v1/api.proto" >api.proto
npm init -y >/dev/null
npm install --no-save @bufbuild/buf@1.75.0 @bufbuild/protoc-gen-es@2.17.0 >/dev/null
cat >buf.gen.yaml <<'END'
version: v2
plugins:
  - local: node_modules/.bin/protoc-gen-es
    out: out
    opt: [target=js+dts, js_import_style=module]
END
node_modules/.bin/buf generate --path api.proto
cp out/api_pb.js "$here/api.gen.js"
cp out/api_pb.d.ts "$here/api.gen.d.ts"
