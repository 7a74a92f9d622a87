# Runs one command with what a vendor may lack: a timeout that kills, standard input, and bounds of the output.
# Words: MARK SECONDS COMMAND INPUT KEPT; writes a line: exit code or `late`, stdout and stderr as base64.
folder=$(mktemp -d) && begin=$(date +%s)
AGENTRL_COMMAND="$1" timeout -s KILL "$2" "$0" -c "$3" <"$4" >"$folder/out" 2>"$folder/err"
code=$?
if [ "$code" -eq 137 ] && [ $(($(date +%s) - begin)) -ge "$2" ]; then code=late; fi
show() {
    left=$(($(wc -c <"$1") - $2))
    if [ "$left" -le 0 ]; then cat "$1"; return; fi
    head -c $(($2 / 2)) "$1"
    printf '\n[... %s bytes left out ...]\n' "$left"
    tail -c $(($2 / 2)) "$1"
}
printf '%s %s %s\n' "$code" "$(show "$folder/out" "$5" | base64 | tr -d '\n')" "$(show "$folder/err" "$5" | base64 | tr -d '\n')"
rm -rf "$folder"
if [ "$4" != /dev/null ]; then rm -f "$4"; fi
