# Ends a shell with all that it started, background jobs too.
dir=$1 pid=$2
rm -f "$dir/jobs"
processes
kill -KILL $found 2>/dev/null
rm -rf "$dir"
