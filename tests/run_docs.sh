#!/usr/bin/env bash
# tests/run_docs.sh ASSAY BUILD CEILINGS PAGE...: runs the ```sh blocks of documentation pages as a reader
# would, line by line in one folder per page. "# exit N" at a line's end says what it must return.
# CEILINGS is a ledger that `assay device` made. Ledgers that a page names start as copies of it: this
# machine is measured once, not once a ledger. A page that names none measures for itself.
set -u
assay=$1 build=$2 ceilings=$3
shift 3
source_dir=$(cd "$(dirname "$0")/.." && pwd)
failures=0
for page in "$@"; do
  folder=$(mktemp -d)
  mkdir -p "$folder/bin" "$folder/build"
  ln -s "$assay" "$folder/bin/assay"
  ln -s "$build" "$folder/build/cpu"
  for name in examples suites results; do ln -s "$source_dir/$name" "$folder/$name"; done
  for ledger in $(grep -oP -- '--ledger \K[a-z0-9]+\.jsonl' "$source_dir/$page" | sort -u); do
    cp "$ceilings" "$folder/$ledger" || exit 1
  done
  export PATH="$folder/bin:$PATH" HOME=$folder NO_COLOR=1
  cd "$folder" || exit 1
  lines=0
  while IFS= read -r line; do
    [ -z "${line%%#*}" ] && continue
    want=$(sed -n 's/.*# exit \([0-9]*\)$/\1/p' <<<"$line")
    bash -c "$line" >"$folder/out" 2>&1 </dev/null
    got=$?
    lines=$((lines + 1))
    if [ "$got" != "${want:-0}" ]; then
      echo "$page: '$line' returned $got, not ${want:-0}:"
      tail -n 20 "$folder/out"
      failures=$((failures + 1))
      break
    fi
  done < <(awk '/^```sh$/ {inside = 1; next} /^```/ {inside = 0} inside' "$source_dir/$page")
  echo "$page: $lines commands"
  if [ "$lines" = 0 ]; then
    echo "$page has no command block"
    failures=$((failures + 1))
  fi
  cd /
  rm -rf "$folder"
done
exit "$failures"
