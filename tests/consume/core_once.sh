#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# core_once.sh COMPILER ARGUMENT...: the compiler, for the projects of these tests. A part of a core, or one in one source
# (core_in_one.cpp), that another test has had compiled, from equal text with equal flags, is taken out of
# BELAY_TEST_CORES. Each project's own headers are read, so that one that a package lacks is missed; names of files in
# messages are those of the first project. Macros are in the text, and warnings in no object.
folder=$BELAY_TEST_CORES
source= object= flags=() reads=()
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
  argument=${arguments[i]}
  case $argument in
    -o) object=${arguments[++i]} ;;
    -c) ;;
    *.cpp) source=$argument reads+=("$argument") ;;
    -MT | -MF | -I | -isystem) reads+=("$argument" "${arguments[++i]}") ;;
    -I* | -M* | -D* | -U* | -W*) reads+=("$argument") ;;
    *) reads+=("$argument") flags+=("$argument") ;;
  esac
done
[[ $source =~ /belay_core/[^/]*_[0-9]+\.cpp$|/core_in_one\.cpp$ && -n $object ]] || exec "$@"
mkdir -p "$folder"
text=$(mktemp "$folder/text_XXXXXX")
trap 'rm -f "$text"' EXIT
"${reads[@]}" -E -P -o "$text" || exit
known=$folder/$( (printf '%s\n' "${flags[@]}" && cat "$text") | sha256sum | cut -d ' ' -f 1).o
exec 9>"$known.lock"
flock 9  # another project may be at it
if [ ! -e "$known" ]; then
  "$@" || exit
  cp "$object" "$known"
else
  cp "$known" "$object"
fi
