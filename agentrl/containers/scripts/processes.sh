# Sets `found` to the shell `pid` and its descendants, without its background jobs (those in the file `jobs`).
processes() {
  jobs=" $(cat "$dir/jobs" 2>/dev/null | tr '\n' ' ') " table= found=$pid grown=1
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    child=${line%% *}
    set -- ${line##*) }
    table="$table $child:$2"
  done
  while [ "$grown" ]; do
    grown=
    for pair in $table; do
      child=${pair%:*}
      case " $found " in *" ${pair#*:} "*) ;; *) continue ;; esac
      case "$jobs $found " in *" $child "*) continue ;; esac
      found="$found $child" grown=1
    done
  done
}
