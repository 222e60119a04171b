# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The first example compiles with single_include/belay_host.hpp in the place of Belay's headers and nothing else to include
# from, without warnings; and who includes a header of Belay before it or behind it, or wants separate compilation, is told.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
file(REMOVE_RECURSE "${work_dir}")
file(MAKE_DIRECTORY "${work_dir}/include")
file(COPY "${source_dir}/single_include/belay.hpp" "${source_dir}/single_include/belay_host.hpp" DESTINATION "${work_dir}/include")
set(command ${${compiler}} -std=c++20 -pthread "-I${work_dir}/include" -fsyntax-only
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

file(READ "${source_dir}/examples/00_hello.cpp" text)
string(REPLACE "#include \"belay/backend/host.hpp\"\n" "#include \"belay_host.hpp\"\n" text "${text}")
string(REPLACE "#include \"belay/belay.hpp\"\n" "" text "${text}")
if(NOT text MATCHES "\n#include \"belay_host\\.hpp\"\n" OR text MATCHES "#include \"belay/")
  message(FATAL_ERROR "examples/00_hello.cpp has other includes than belay/belay.hpp and belay/backend/host.hpp")
endif()
file(WRITE "${work_dir}/hello.cpp" "${text}")
execute_process(COMMAND ${command} "${work_dir}/hello.cpp" RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
if(failed)
  string(SUBSTRING "${diagnostics}" 0 3000 diagnostics)
  message(SEND_ERROR "${compiler} does not compile examples/00_hello.cpp with belay_host.hpp:\n${diagnostics}")
endif()

# The errors come before anything is compiled twice.
function(expect_refusal source expected)
  file(WRITE "${work_dir}/refused.cpp" "${source}")
  execute_process(COMMAND ${command} -E "${work_dir}/refused.cpp" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE diagnostics)
  if(NOT failed OR NOT diagnostics MATCHES "${expected}")
    string(SUBSTRING "${diagnostics}" 0 3000 diagnostics)
    message(SEND_ERROR "not refused with '${expected}': ${source}\n${diagnostics}")
  endif()
endfunction()
expect_refusal("#include \"belay.hpp\"\n#include \"belay_host.hpp\"\n" "belay_host.hpp is all of Belay in one file")
expect_refusal("#define BELAY_SEPARATE_COMPILATION\n#include \"belay.hpp\"\n" "belay.hpp has no separate compilation")
expect_refusal("#include \"belay.hpp\"\n#include \"${source_dir}/include/belay/core/config.hpp\"\n" "Belay is here already, by a file of single_include")
