# Runs the command $8. Prints its output, and on stderr one of "NUMBER CODE NEXT", "gone CODE", "flood 0".
#
# dash has no `read -t`: there nothing looks at the size of the output while a command runs.
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
