# Makes the files of a row's tests in $0/files, and leaves the repository as its agent finds it: with the row's bug.
# Arguments: a file for the PATH of the agent, how many of the files it must not see, the files of the tests.
set -e
for folder in /opt/miniconda3/envs/testbed/bin "$PWD/.venv/bin"; do
  [ ! -d "$folder" ] || echo "PATH=$folder:\$PATH"
done >"$1"
hidden=("${@:3:$2}")
shift 2
git() { command git -c safe.directory='*' -c user.name=tasks -c user.email=tasks@localhost "$@"; }
[ ! -s "$0/bug.patch" ] || git apply --whitespace=nowarn "$0/bug.patch"
[ ! -s "$0/test.patch" ] || git apply --whitespace=nowarn "$0/test.patch"
mkdir -m 700 "$0/files"
for file; do
  [ ! -e "$file" ] || cp -a --parents -- "$file" "$0/files"
done
[ ! -s "$0/test.patch" ] || git apply --whitespace=nowarn --reverse "$0/test.patch"
rm -rf -- "${hidden[@]}"
if [ -s "$0/bug.patch" ]; then # the commit without the bug would show the answer
  git add --all && git commit --quiet --amend --no-edit --no-verify
  for remote in $(git remote); do git remote remove "$remote"; done
  git reflog expire --expire=now --all && git prune
fi
