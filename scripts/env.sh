# Sourced by scripts/quickstart, scripts/test and others: creates .venv from requirements.lock, or reuses it.
# shellcheck shell=bash
#
#   bootstrap         makes .venv ready, or ends the script with a plain message
#   stage_time N      formats N seconds as "1m05s"
#   say, fail         print lines; print lines and exit with a code
#
# PYTHON=/path/to/python chooses the interpreter (3.11 to 3.13). uv is used when it is on PATH.
# An environment counts as complete only if its stamp, written last, matches this lock, project file,
# Python version and folder (a moved .venv still refers to the old path).

ROOT="$(CDPATH="" cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
STAMP="$VENV/.fire_lm_stamp"
CLAIM="$VENV/.fire_lm_installing"   # contains the installer's process ID; survives an interruption
LOG="$VENV/install.log"

# The lock defines the whole environment, so nothing may leak in from the caller's paths.
unset PYTHONPATH PYTHONHOME
# With libtpu installed on a machine without a TPU, JAX prints errors and waits without these settings.
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
export TPU_SKIP_MDS_QUERY=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"

say() { printf "%s\n" "$@"; }
# Every failure below ends the script explicitly, because "set -e" is off inside `bootstrap || ...`.
fail() { local code=$1; shift; printf '%s\n' "$@" >&2; exit "$code"; }
stage_time() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }

supported() {  # PYTHON: succeeds if it is a Python that we support
  "$1" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    >/dev/null 2>&1
}

find_python() {  # prints the interpreter, after trying it: a name on PATH may be a shim that fails
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    supported "$PYTHON" ||
      fail 2 "PYTHON=$PYTHON is not a working Python 3.11, 3.12 or 3.13." \
        "Point PYTHON at one, or unset it to search PATH."
    command -v "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    # Not the environment's own Python, which is first on PATH if activated, and may be replaced.
    case "$(command -v "$candidate" || true)" in
      "" | "$VENV"/*) continue ;;
    esac
    if supported "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail 2 "No Python 3.11, 3.12 or 3.13 was found on PATH." \
    "Install one, or pass its path: PYTHON=/path/to/python3.12 $0"
}

stamp_of() {  # PYTHON: prints the stamp of a complete environment; the last line is the project's
  "$1" -I -S -c '
import hashlib, platform, sys
print("python", platform.python_version())
print("folder", sys.argv[1])
for name in ("requirements.lock", "pyproject.toml"):
    with open(f"{sys.argv[1]}/{name}", "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
' "$ROOT" 2>/dev/null
}

phase() {  # TEXT COMMAND...: logs the output, shows progress every 10 s; a failure ends the script
  local text=$1 start=$SECONDS code=0 heartbeat
  shift
  say "  $text ..."
  (while sleep 10 >/dev/null && kill -0 $$; do say "    $((SECONDS - start)) s"; done) \
    2>/dev/null &
  heartbeat=$!
  "$@" >>"$LOG" 2>&1 || code=$?
  kill "$heartbeat" 2>/dev/null || true
  wait "$heartbeat" 2>/dev/null || true
  if [ "$code" -ne 0 ]; then
    tail -n 15 "$LOG" >&2
    fail 1 "\"$text\" failed (exit code $code); the full output is in ${LOG#"$ROOT"/}." \
      "Fix the cause and rerun the same command."
  fi
  say "    done in $((SECONDS - start)) s"
}

claim_environment() {  # two simultaneous installs would damage each other
  local other
  mkdir -p "$VENV" || fail 1 "$VENV cannot be created."
  if ! (set -o noclobber; echo $$ >"$CLAIM") 2>/dev/null; then
    other=$(cat "$CLAIM" 2>/dev/null || true)
    if [ -n "$other" ] && [ "$other" != $$ ] && kill -0 "$other" 2>/dev/null; then
      fail 1 "Process $other is installing into .venv right now." \
        "Wait for it, then rerun this command."
    fi
    echo $$ >"$CLAIM" || fail 1 "$VENV cannot be written."
  fi
  rm -f "$STAMP"
}

with_uv() { command -v uv >/dev/null 2>&1; }

make_environment() {  # PYTHON
  if with_uv; then
    uv venv --quiet --allow-existing --python "$1" "$VENV"
  else
    "$1" -m venv "$VENV" || {
      say "This Python cannot create environments: install its venv package (on Debian and Ubuntu:"
      say "apt install python3-venv), or put uv on PATH."
      return 1
    }
  fi
}

install() {  # pip's or uv's arguments
  if with_uv; then
    uv pip install --python "$VENV/bin/python" "$@"
  else
    "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install --no-compile \
      --progress-bar off "$@"
  fi
}

install_lock() {  # FILE
  install --require-hashes -r "$1" || return
  # This uses all cores, while pip uses one. Without bytecode, every process would compile TensorFlow
  # again if none may be written. Some files in the packages compile on none of our Python versions.
  "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" >/dev/null 2>&1 || true
}

install_project() {
  phase "installing fire_lm itself" install --no-deps --no-build-isolation -e "$ROOT"
}

install_everything() {
  local python tool=pip
  python=$(find_python) || exit $?
  if with_uv; then tool=uv; fi
  claim_environment
  find "$VENV" -mindepth 1 -maxdepth 1 ! -name "${CLAIM##*/}" -exec rm -rf {} + ||
    fail 1 "$VENV cannot be emptied."
  say "Creating .venv with $python and $tool (about 4 GB, a minute or more, only once)"
  phase "creating the environment" make_environment "$python"
  phase "downloading and installing requirements.lock" install_lock "$ROOT/requirements.lock"
  install_project
}

bootstrap() {
  local have="" want="" start=$SECONDS
  if [ -L "$VENV" ]; then  # it belongs to another checkout, for which it would be damaged
    fail 2 "$VENV is a link to $(readlink "$VENV"): an environment belongs to one checkout." \
      "Remove the link (rm $VENV) and rerun this command to create one."
  fi
  if [ -f "$STAMP" ]; then
    have=$(cat "$STAMP")
    if "$VENV/bin/python" -I -S -c '' 2>/dev/null; then
      want=$(stamp_of "${PYTHON:-$VENV/bin/python}" || true)
    fi
    if [ "$have" = "$want" ]; then
      say "Using .venv"
      return
    fi
  elif [ -n "$(ls -A "$VENV" 2>/dev/null)" ] && [ ! -f "$CLAIM" ]; then
    fail 2 "$VENV already exists, but this script did not create it." \
      "Move it away and rerun this command."
  fi
  if [ -n "$have" ] && [ "${have%$'\n'*}" = "${want%$'\n'*}" ]; then
    say "pyproject.toml has changed since .venv was created"
    claim_environment
    install_project
  else
    install_everything
  fi
  { stamp_of "$VENV/bin/python" >"$STAMP.part" && mv "$STAMP.part" "$STAMP"; } ||
    fail 1 "$STAMP cannot be written."
  rm -f "$CLAIM"
  say ".venv is ready after $(stage_time $((SECONDS - start)))"
}

bootstrap_beam() {  # .venv/beam: the lock and the extra `cache`, whose packages are not in the lock
  local python="$VENV/bin/python" VENV="$VENV/beam"
  export FIRE_LM_BEAM_PYTHON="$VENV/bin/python"
  if [ -f "$VENV/.whole" ]; then return; fi
  phase "creating an environment for Apache Beam" make_environment "$python"
  phase "installing requirements.lock into it" install_lock "$ROOT/requirements.lock"
  phase "installing Apache Beam into it" install apache-beam==2.77.0 google-crc32c
  touch "$VENV/.whole"
}

bootstrap_interop() {  # .venv/interop: torch, transformers, lm-eval and wandb, on top of the packages in .venv
  local base="$VENV" VENV="$VENV/interop" have="" want extras packages
  extras=$("$base/bin/python" -c '
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
print(*extras["hf"], *extras["lm-eval"], *extras["wandb"])' "$ROOT/pyproject.toml")
  # The versions with which the documented numbers were measured. Some indexes have a CPU build of
  # torch 2.13.0 (200 MB); others have only the CUDA build, which takes several GB.
  # shellcheck disable=SC2206  # the extras are words
  packages=(torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 $extras)
  want="$(cat "$base/.fire_lm_stamp") ${packages[*]}"
  if [ -f "$VENV/.whole" ]; then have=$(cat "$VENV/.whole"); fi
  if [ "$have" = "$want" ]; then return; fi
  (install_interop "$base" "${packages[@]}") ||
    fail 3 "The environment for torch, transformers, lm-eval and wandb could not be installed (see above)."
  echo "$want" >"$VENV/.whole"
  say "  .venv/interop is ready ($(du -sh "$VENV" | cut -f1))"
}

install_interop() {  # BASE PACKAGES...
  local base=$1 site
  shift
  rm -rf "$VENV"
  phase "creating an environment for torch over .venv" make_environment "$base/bin/python"
  site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  case "$site" in
    "$VENV"/*) ;;
    *) fail 1 "$VENV is not an environment: its packages would be in '$site'." ;;
  esac
  echo "import site; site.addsitedir('$base${site#"$VENV"}')" >"$site/over_venv.pth"
  # The lock serves as constraints, so that the locked versions do not change.
  sed -n 's/ *\\$//; /^[A-Za-z0-9].*==/p' "$ROOT/requirements.lock" >"$VENV/constraints.txt"
  phase "installing $*" install --constraint "$VENV/constraints.txt" "$@"
}

bootstrap_docs() {  # .venv-docs: docs/requirements.lock and nothing else; MkDocs needs neither JAX nor TensorFlow
  local python
  VENV="$ROOT/.venv-docs"
  LOG="$VENV/install.log"
  if cmp -s "$ROOT/docs/requirements.lock" "$VENV/.installed.lock" && "$VENV/bin/python" -c '' 2>/dev/null; then
    return
  fi
  python=$(find_python) || exit $?
  rm -rf "$VENV"
  mkdir -p "$VENV" || fail 1 "$VENV cannot be created."
  phase "creating an environment for the documentation" make_environment "$python"
  phase "installing docs/requirements.lock into it" install_lock "$ROOT/docs/requirements.lock"
  cp "$ROOT/docs/requirements.lock" "$VENV/.installed.lock"
}
