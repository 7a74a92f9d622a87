# Becomes the words $2 (as text) of the user $1: a name, a number, or two numbers (user:group).
user=${1%%:*}
case $1 in *:*) name= ;; *) name=$(id -nu "$user" 2>/dev/null) ;; esac
if [ -n "$name" ]; then exec su -s /bin/sh "$name" -c "exec $2"; fi
exec setpriv --reuid "$user" --regid "${1#*:}" --clear-groups sh -c "exec $2"
