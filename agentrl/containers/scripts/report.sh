# Functions: `show` prints the output of a command, `report` also how it ended.
show() {
  out=$dir/out.$output
  size=$(wc -c <"$out" 2>/dev/null || echo 0)
  if [ "$size" -le $((head + tail)) ]; then
    cat "$out" 2>/dev/null
  else
    head -c "$head" "$out"
    printf '\n[... %s bytes left out ...]\n' $((size - head - tail))
    tail -c "$tail" "$out"
    true >"$out"
  fi
}
report() {
  show
  echo "$word $code $next" >&2
}
