#!/usr/bin/env bash
# Makes api.gen.js and api.gen.d.ts again: CSI's messages and services from its specification (Apache License 2.0), without
# its comments. Needs Go and npm; nothing of it is installed in the package.
set -euo pipefail
version=v1.13.0
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
module=$(go mod download -json "github.com/container-storage-interface/spec@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
sed -E '/^[[:space:]]*\/\//d; s#[[:space:]]+//.*$##' "$module/csi.proto" >csi.proto
npm init -y >/dev/null
npm install --no-save @bufbuild/buf@1.75.0 @bufbuild/protoc-gen-es@2.17.0 >/dev/null
cat >buf.gen.yaml <<'END'
version: v2
plugins:
  - local: node_modules/.bin/protoc-gen-es
    out: out
    opt: [target=js+dts, js_import_style=module]
END
node_modules/.bin/buf generate --path csi.proto
cp out/csi_pb.js "$here/api.gen.js"
cp out/csi_pb.d.ts "$here/api.gen.d.ts"
