# Becomes the words $2 (as text) of the user $1: a name, a number, or two numbers (user:group).
user=${1%%:*}
if name=$(id -nu "$user" 2>/dev/null); then exec su -s /bin/sh "$name" -c "exec $2"; fi
exec setpriv --reuid "$user" --regid "${1#*:}" --clear-groups sh -c "exec $2"
