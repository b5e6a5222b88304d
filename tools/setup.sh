#!/bin/sh
# Makes .venv and installs ottla into it (editable) with all that `make run` and `make test` need.
# The Makefile calls it when pyproject.toml or constraints.txt are newer than the stamp it leaves in .venv.
#
# A working .venv is kept and brought up to date. A new one is made with $PYTHON if that is set, else with the
# first Python below that runs and is new enough: a name on the PATH proves nothing, since version switchers
# put names there that fail when called. It speaks plain sh because it runs before there is a Python to trust.
set -eu
cd "$(dirname "$0")/.."

here=$(pwd -P)
venv=.venv
stamp=$venv/.setup-done

say() { printf '%s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
can_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

if uv --version >/dev/null 2>&1; then installer=uv; else installer=pip; fi

# Sets $python. Without uv a Python is of use only if it can put pip into a new environment.
choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON does not run, or is older than 3.11."
        set -- "$PYTHON"
    else
        set -- python3.13 python3.12 python3.11 python3
    fi
    lacking=
    for python; do
        new_enough "$python" || continue
        if [ "$installer" = uv ] || can_venv "$python"; then return; fi
        lacking=${lacking:-$python}
    done
    if [ -n "$lacking" ]; then
        fail "$lacking ($(version_of "$lacking")) cannot make virtual environments: it lacks ensurepip." \
            "On Debian and Ubuntu install python$(version_of "$lacking")-venv (for the system's own Python: python3-venv)," \
            "or install uv, then run this again."
    fi
    fail "found no Python >= 3.11 that runs (tried: $*)." \
        "Install one, or name it: make setup PYTHON=/path/to/python3"
}

# A .venv is kept if its Python runs and is the one asked for, if it was not moved here with its old paths in
# every script, and if the installer can use it.
keep_venv() {
    new_enough "$venv/bin/python" || return 1
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" != "$here" ]; then return 1; fi
    if [ -n "${PYTHON:-}" ] && [ "$(version_of "$PYTHON")" != "$(version_of "$venv/bin/python")" ]; then return 1; fi
    [ "$installer" = uv ] || "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then choose_python; fi
if ! keep_venv; then
    choose_python
    say "Making $venv with $python ($(version_of "$python"))"
    rm -rf "$venv"
    if [ "$installer" = uv ]; then
        uv venv --quiet --python "$python" "$venv"
    else
        "$python" -m venv "$venv"
    fi
fi

say "Installing into $venv with $installer (the first time takes a minute or two: PySpark, for its ZooKeeper, has 450 MB)"
rm -f "$stamp"
if [ "$installer" = uv ]; then
    uv pip install --quiet --python "$venv/bin/python" \
        --constraints constraints.txt --build-constraints constraints.txt --editable '.[dev]'
else
    # pip hands constraints to the build of the package only through the environment, under a name that
    # newer versions changed.
    PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$venv/bin/python" -m pip install --quiet --editable '.[dev]'
fi
say "$here" >"$stamp"
say "Ready: $("$venv/bin/python" --version) in $venv"
