# Prepares a shell. $1: its folder; $2: the folder of a shell that ended, whose state it takes over.
#
# Its functions call no program, as a command may have changed PATH. SIGINT ends the shell, and with it the rest of a list
# of commands; the next shell takes over its state. Background jobs ignore SIGINT, as they do without job control.
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
