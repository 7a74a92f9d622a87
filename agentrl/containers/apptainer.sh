# Starts an instance of Apptainer, and removes it once standard input ends: by `stop`, or as the process that made it died.
#
# $1: the program; $2: the instance's name; $3: its image; $4...: options of the start. Prints "ready", or why it is not.
program=$1 name=$2 image=$3
shift 3
folder=$(mktemp -d) && mkdir "$folder/overlay" "$folder/work"
if "$program" -s instance start "$@" --overlay "$folder/overlay" --workdir "$folder/work" "$image" "$name" \
  </dev/null >"$folder/log" 2>&1; then
  echo ready
else
  said=$(grep -v '^ *$' "$folder/log" | grep -m 1 FATAL || tail -n 1 "$folder/log")
  echo "${said:-it wrote nothing}"
fi
exec >/dev/null 2>&1
read -r line
"$program" -s instance stop -s KILL -t 1 "$name" </dev/null
# Files of further users of the container belong to none of this machine: a container of the same kind removes them.
rm -rf "$folder" || "$program" -s exec "$@" --bind "$folder:/mnt" "$image" rm -rf /mnt/overlay /mnt/work </dev/null
rm -rf "$folder"
