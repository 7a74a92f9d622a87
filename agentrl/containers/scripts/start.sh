# Starts a shell. Arguments: a name for its folder, the folder of the shell before, LOOP, PREPARE, names of shells.
#
# Prints "ready PID RESTORED FOLDER", then kills itself: a shell that it started with & would ignore SIGINT forever.
# /dev/shm comes first: a command that fills the disk does not silence the shell.
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
