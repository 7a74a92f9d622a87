# Ends the command that runs: SIGINT to it and the shell, SIGKILL to it after `grace` seconds, then to the shell.
#
# Background jobs of earlier commands are spared. Prints as `call` does; after a flood of output that comes first, so that
# the disk, which it may have filled, has room for the state of the shell.
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
