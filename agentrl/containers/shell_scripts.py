"""The shell programs of `shell`: POSIX sh, with bash's abilities where it is there.

Each shell has a folder in the container: the named pipe `go` brings it commands, the named pipe `done` takes
its answers away ("NUMBER CODE NEXT", or "gone CODE" once it has ended), `out.0` has the output of a command, `jobs` the
process ids of background jobs, and `state` is written when the shell ends. After a command that left background jobs,
which still write to its output, the next one has another file: NEXT.
"""

PREPARE = r"""
__dir=$1 __output=0 __restored=0 __newline='
'
__dump() {
  if [ "${BASH_VERSION-}" ]; then declare -p; declare -f; alias -p; else set; export -p; fi >|"$__dir/state" &&
    echo __complete=1 >>"$__dir/state"
}
__save() {
  __dump || { true >|"$__file"; __dump; }  # what fills the disk is probably the output
}
__next() {
  {
    IFS= read -r __number
    __command=
    while IFS= read -r __line || [ "$__line" ]; do __command=$__command$__line$__newline; done
  } <"$__dir/go"
  __file=$__dir/out.$__output
  true >|"$__file" || __file=/dev/null
}
__answer() {
  jobs -p >|"$__dir/jobs"
  [ ! -s "$__dir/jobs" ] || __output=$((__output + 1))
  echo "$__number $1 $__output" >&9
}
[ "${BASH_VERSION-}" ] && shopt -s expand_aliases
if [ -s "$2/state" ]; then
  . "$2/state" 2>/dev/null
  [ "${__complete-}" ] && cd "$PWD" && __restored=1
  unset __complete
  __dir=$1 __output=0
fi
exec 9<>"$__dir/done"
trap __save EXIT
trap 'exit 130' INT
echo "ready $$ $__restored" >&9
"""
"""Prepares a shell. $1: its folder; $2: the folder of a shell that ended, whose state it takes over.

Its functions call no program, as a command may have changed PATH. SIGINT ends the shell, and with it the rest of a list
of commands; the next shell takes over its state. Background jobs ignore SIGINT, as they do without job control."""

LOOP = (
    r""". "$1/prepare"; set --; while __next; do { command eval "$__command"; } >>"$__file" 2>&1 </dev/null 9>&-; """
    '__answer "$?"; done'
)
"""Runs commands one after another. One line, as messages of bash name the line."""

START = r"""
name=$1 old=$2 loop=$3 prepare=$4 shell=
shift 4
for candidate; do
  shell=$(command -v "$candidate") && break
done
for base in /dev/shm /tmp /var/tmp "$HOME" "$PWD"; do
  dir=$base/$name
  mkdir -m 700 "$dir" 2>/dev/null && mkfifo "$dir/go" "$dir/done" 2>/dev/null && break
  rmdir "$dir" 2>/dev/null
  dir=
done
[ "$dir" ] || { echo "no folder of it can be written to, or it has no mkfifo" >&2; exit 1; }
printf '%s\n' "$prepare" >"$dir/prepare"
exec 3<>"$dir/done"
{
  read -r word pid restored <&3
  [ -z "$old" ] || rm -rf "$old"
  echo "$word $pid $restored $dir"
  kill -KILL $$
} &
$(command -v setsid) sh -c '"$1" -c "$2" "${1##*/}" "$3" "$4"; echo "gone $?" 1<>"$3/done"' \
  sh "$shell" "$loop" "$dir" "$old" </dev/null >/dev/null 2>&1 3>&-
"""
"""Starts a shell. Arguments: a name for its folder, the folder of the shell before, LOOP, PREPARE, names of shells.

Prints "ready PID RESTORED FOLDER", then kills itself: a shell that it started with & would ignore SIGINT forever.
/dev/shm comes first: a command that fills the disk does not silence the shell."""

REPORT = r"""
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
"""

CALL = (
    REPORT
    + r"""
dir=$1 pid=$2 number=$3 output=$4 head=$5 tail=$6 most=$7 patience='-t 0.5'
exec 3<>"$dir/done"
kill -0 "$pid" 2>/dev/null || { echo "gone 137" >&2; exit; }
[ "${BASH_VERSION-}" ] || (read -r -t 0 word <&3) 2>/dev/null || [ $? != 2 ] || patience=
printf '%s\n' "$number" "$8" >"$dir/go"
while true; do
  if read -r $patience word code next <&3; then
    [ "$word" = "$number" ] || [ "$word" = gone ] || continue
    break
  fi
  [ "$(wc -c <"$dir/out.$output" 2>/dev/null || echo 0)" -le "$most" ] || { echo "flood 0" >&2; exit; }
done
report
"""
)
"""Runs the command $8. Prints its output, and on stderr one of "NUMBER CODE NEXT", "gone CODE", "flood 0".

dash has no `read -t`: there nothing looks at the size of the output while a command runs."""

PROCESSES = r"""
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
"""
"""Sets `found` to the shell `pid` and its descendants, without its background jobs (those in the file `jobs`)."""

INTERRUPT = (
    REPORT
    + PROCESSES
    + r"""
dir=$1 pid=$2 number=$3 output=$4 head=$5 tail=$6 grace=$7 cause=$8
exec 3<>"$dir/done"
answered() {
  (sleep "$grace" 3>&-; echo "late.$1 0" >&3) >/dev/null 2>&1 &
  timer=$!
  while read -r word code next <&3; do
    case $word in "$number" | gone | "late.$1") break ;; esac
  done
  kill "$timer" 2>/dev/null
  [ "$word" != "late.$1" ]
}
end() {
  kill -0 "$pid" 2>/dev/null || { word=gone code=137; return; }
  processes
  kill -INT $found
  answered 1 && return
  processes
  kill -KILL ${found#"$pid"} 2>/dev/null
  answered 2 && return
  kill -KILL "$pid"
  answered 3
}
[ "$cause" != flood ] || show
end 2>/dev/null
report
"""
)
"""Ends the command that runs: SIGINT to it and the shell, SIGKILL to it after `grace` seconds, then to the shell.

Background jobs of earlier commands are spared. Prints as CALL does; after a flood of output that comes first, so that
the disk, which it may have filled, has room for the state of the shell."""

END = (
    PROCESSES
    + r"""
dir=$1 pid=$2
rm -f "$dir/jobs"
processes
kill -KILL $found 2>/dev/null
rm -rf "$dir"
"""
)
"""Ends a shell with all that it started, background jobs too."""
