#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# core_once.sh COMPILER ARGUMENT...: the compiler, for the projects of these tests. A core, of which each leg of tests/run
# compiles the parts, is here compiled whole, which takes half as long, with the house's warnings: the object of its first
# part, or of core_in_one.cpp, has all of it, those of the others have nothing. One that another test has had compiled,
# from equal text with equal flags, is taken out of BELAY_TEST_CORES. Each project's own headers are read, so that one
# that a package lacks is missed; names of files in messages are those of the first project. Macros are in the text, and
# warnings and -pthread in no object.
folder=$BELAY_TEST_CORES
source= object= flags=() reads=()
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
  argument=${arguments[i]}
  case $argument in
    -o) object=${arguments[++i]} ;;
    -c) ;;
    *.cpp) source=$argument ;;
    -isystem)
      [ ! -e "${arguments[++i]}/belay" ] || argument=-I  # whose warnings are ours
      reads+=("$argument" "${arguments[i]}")
      ;;
    -MT | -MF | -I) reads+=("$argument" "${arguments[++i]}") ;;
    -I* | -M* | -D* | -U* | -W* | -pthread) reads+=("$argument") ;;
    *) reads+=("$argument") flags+=("$argument") ;;
  esac
done
mkdir -p "$folder"
case $object:$source in
  ?*:*/belay_core/*_1.cpp | ?*:*/core_in_one.cpp) ;;
  ?*:*/belay_core/*_[0-9]*.cpp)
    : >>"$folder/nothing.cpp"
    exec "${reads[@]}" -c "$folder/nothing.cpp" -o "$object"
    ;;
  *) exec "$@" ;;
esac
text=$(mktemp "$folder/text_XXXXXX")
trap 'rm -f "$text"' EXIT
grep '^#include ' "$source" >"$text" || exit  # without the line that says which part of it
whole=$folder/whole_$(sha256sum "$text" | cut -c 1-16).cpp
[ -e "$whole" ] || mv "$text" "$whole"
"${reads[@]}" -E -P -o "$text" "$whole" || exit
known=$folder/$( (printf '%s\n' "${flags[@]}" | sort && cat "$text") | sha256sum | cut -d ' ' -f 1).o
exec 9>"$known.lock"
flock 9  # another project may be at it
if [ ! -e "$known" ]; then
  "${reads[@]}" -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -c "$whole" -o "$known.new" || exit
  mv "$known.new" "$known"
fi
cp "$known" "$object"
