#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# uninstall.sh MANIFEST: removes the files that were installed (below DESTDIR, if it is set), and
# the folders of Tierce's own that are empty then.
set -eu
manifest=${1:?usage: uninstall.sh MANIFEST}
destdir=${DESTDIR:-}

if [ ! -f "$manifest" ]; then
    echo "nothing to uninstall: there is no $manifest (run make install first)" >&2
    exit 1
fi
removed=0
# The last line of the manifest has no newline.
while IFS= read -r path || [ -n "$path" ]; do
    [ -e "$destdir$path" ] || [ -L "$destdir$path" ] || continue
    rm -f -- "$destdir$path"
    removed=$((removed + 1))
    case $path in
    */tierce/*) rmdir -- "$destdir$(dirname -- "$path")" 2>/dev/null || true ;;
    esac
done <"$manifest"
echo "removed $removed files"
