#!/bin/sh
# Read a prediction, give a label, and read what changed, with curl.
#
#     unimp serve runs/mine
#     examples/serve/label.sh http://127.0.0.1:8765 NODE LABEL
#
# With tokens, set TOKEN: it goes into a header, never into an address.
set -eu
address=$1
# Every byte of the id is percent-encoded, and quotes in the label are escaped for JSON.
node=$(printf %s "$2" | od -An -v -tx1 | tr -d '\n' | tr ' ' '%')
label=$(printf %s "$3" | sed 's/[\\"]/\\&/g')
if [ -n "${TOKEN:-}" ]; then
    who="Authorization: Bearer $TOKEN"
else
    who="Origin: $address"
fi

# The prediction now, with its version.
curl --fail-with-body --silent --show-error -H "$who" "$address/v1/nodes/$node"
echo

# Give the label. After an error of the network, send the same key again: it is stored once.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
written=$(curl --fail-with-body --silent --show-error --retry 5 --retry-all-errors -X PUT \
    -H "$who" -H "Idempotency-Key: $key" -H 'Content-Type: application/json' \
    -d "{\"label\": \"$label\"}" "$address/v1/nodes/$node/label")
echo "$written"
version=$(echo "$written" | sed 's/.*"version":\([0-9]*\).*/\1/')

# Everything that this label changed. min_version makes sure that the answer includes it; until it
# is computed, the service answers 503 with Retry-After, and curl tries again.
curl --fail-with-body --silent --show-error --retry 20 -H "$who" \
    "$address/v1/changes?since=$((version - 1))&min_version=$version"
echo
