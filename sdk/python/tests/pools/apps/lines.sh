#!/bin/sh
# Answers each line of work with one of its own.
while read -r line; do
  case "$line" in
    *'"fails"'*) echo '{"error": "no such width", "permanent": true}' ;;
    *'"odd"'*) echo 'this is no answer'; echo '{"result": "odd"}' ;;
    *'"dies"'*) echo 'about to die' >&2; kill -9 $$ ;;
    *'"steps"'*)
      echo '{"progress": {"done": 1, "total": 2, "note": "half"}, "checkpoint": {"at": 1}}'
      while [ ! -e "$TRIAL_GO" ]; do sleep 0.02; done
      echo '{"result": {"stepped": true}}' ;;
    *) echo '{"result": {"pid": '$$', "in": "'"$PWD"'"}}' ;;
  esac
done
