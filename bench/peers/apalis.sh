#!/bin/sh
# apalis on Valkey. Its program is built outside of our workspace, with the newest versions of its packages.
system=apalis
. "$(dirname "$0")/start.sh"
need cargo
mkdir -p "$place/program"
cp -R "$here/apalis/." "$place/program/"
say "building"
(cd "$place/program" && CARGO_TARGET_DIR="$place/target" cargo build --quiet --release) >"$place/install.log" 2>&1 || skip "cargo could not build it"
PEER_VERSION=$(sed -n '/^name = "apalis"$/{n;s/version = "\(.*\)"/\1/p;}' "$place/program/Cargo.lock")
export PEER_VERSION
start_valkey
run "$place/target/release/apalis-peer"
