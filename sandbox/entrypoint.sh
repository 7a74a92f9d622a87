#!/bin/sh
# `docker run IMAGE [options of agentrl-sandbox serve]`. A server that other machines can reach needs a token: where none
# was given, and nobody said --public, one is made up and shown in the log.
set -eu
case " $* " in
    *" --public "* | *" --token"*) ;;
    *)
        if [ -z "${AGENTRL_SANDBOX_TOKEN:-}" ]; then
            AGENTRL_SANDBOX_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
            export AGENTRL_SANDBOX_TOKEN
            echo "token: $AGENTRL_SANDBOX_TOKEN (made for this start; AGENTRL_SANDBOX_TOKEN sets one, --public does without)" >&2
        fi
        ;;
esac
exec /opt/agentrl/bin/agentrl-sandbox serve --host 0.0.0.0 --python /usr/bin/python3 "$@"
