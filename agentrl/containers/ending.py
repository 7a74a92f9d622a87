"""Ends a command in a container with its children: words for a shell there, as no engine can do it from outside."""

MARK = "AGENTRL_COMMAND"
"""Variable of a command and its children; no other command has its value."""

KILL = r"""
mark=$1
grow() {  # adds children and sessions of the family to it; fails where there are no more
    grown=
    for stat in /proc/[0-9]*/stat; do
        read -r line <$stat || continue
        pid=${line%% *}
        set -- ${line##*) }
        case "$1$family" in Z*|*" $pid "*) continue;; esac
        case "$family" in *" $2 "*|*" $4 "*) family="$family$pid "; grown=1;; esac
    done
    test "$grown"
}
for round in 1 2 3 4 5 6 7 8 9 10; do
    family=' '
    for file in $(grep -ls "$mark" /proc/[0-9]*/environ /proc/[0-9]*/cmdline); do
        pid=${file#/proc/}; pid=${pid%/*}
        test $pid = $$ || test ! -e /proc/$pid || family="$family$pid "
    done
    test "$family" = ' ' && exit 0
    while grow; do :; done
    kill -9 $family
done 2>/dev/null
exit 1
"""
"""For `sh -c KILL kill VALUE`: kill the processes with this value of MARK, their children and their sessions. Exit code
1: some are left."""
