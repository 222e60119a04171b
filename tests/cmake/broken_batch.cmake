# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cmake -Dcompiler="g++ flags" -Dbatch=all.cpp -Dsource_dir=<repository> -Dwork_dir=<folder> -P broken_batch.cmake
# Compiles the broken forms of all cases of tests/compile_fail at once, so that their headers are read once, and writes
# what g++ says of NAME.cpp to NAME.txt. expect_compile_error.cmake looks there first; what it does not find as it should
# be it compiles alone, so nothing passes or fails here.
separate_arguments(compiler UNIX_COMMAND "${compiler}")
file(REMOVE_RECURSE "${work_dir}")
file(MAKE_DIRECTORY "${work_dir}")
execute_process(COMMAND ${compiler} -std=c++20 -fsyntax-only -fmax-errors=0 -DBELAY_BROKEN "-I${source_dir}/include" "-I${source_dir}/examples"
  "-I${source_dir}/tests" "${batch}" ERROR_FILE "${work_dir}/diagnostics" OUTPUT_QUIET)
# g++ tells where an error comes from before the error: the last case named up to its line is the one it belongs to, or
# the first one named behind it.
execute_process(COMMAND awk -v folder=${work_dir} [=[
  function close_block(    i) {
    if (owner == "") owner = behind
    if (owner != "") {
      for (i = 0; i < count; ++i) print block[i] >(folder "/" owner ".txt")
    }
    count = 0
    owner = behind = ""
    told = 0
  }
  {
    is_error = / error: /
    begins = is_error || /In file included from|: In (instantiation|function|member|lambda|substitution|copy|constructor|static)|required (from|by)|At global scope/
    if (begins && told) close_block()
    block[count++] = $0
    if (match($0, /tests\/compile_fail\/[a-z0-9_]+\.cpp/)) {
      name = substr($0, RSTART + 19, RLENGTH - 23)
      if (!told) owner = name
      else if (behind == "") behind = name
    }
    if (is_error) told = 1
  }
  END { close_block() }
]=] "${work_dir}/diagnostics" RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the diagnostics in ${work_dir} cannot be read")
endif()
