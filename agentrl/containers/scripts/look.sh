# Describes the path $1, then lists a folder ($3 levels, $4 entries) or gives bytes of a file ($5, from $2 on).
if [ -d "$1" ]; then
  echo folder
  cd "$1" && find . -maxdepth "$3" ! -path '*/.*' | sort | head -n "$4"
elif [ -f "$1" ]; then
  echo "file $(wc -c <"$1")"
  tail -c "+$2" "$1" | head -c "$5" | base64
elif [ -e "$1" ]; then
  echo neither a file nor a folder
else
  echo missing
fi
