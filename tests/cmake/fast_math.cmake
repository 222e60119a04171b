# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# tests/fast_math: numbers.cpp with the flags that let a compiler reorder additions, and that let it take for granted
# that there are no infinities and NaNs, with either compiler; steps.cpp, which takes a minute to compile, with one.
function(belay_fast_math program source)
  if(NOT "fast_math/${program}" MATCHES "${BELAY_TEST_ROOMS}")
    return()
  endif()
  add_executable(fast_math_${program} fast_math/${source}.cpp)
  target_link_libraries(fast_math_${program} PRIVATE belay_test_main belay::belay belay_warnings)
  target_compile_options(fast_math_${program} PRIVATE ${ARGN})
  belay_add_test(fast_math/${program} TARGETS fast_math_${program} COMMAND fast_math_${program})
endfunction()

if(NOT "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_DEBUG}" MATCHES "-fsanitize" AND NOT BELAY_TEST_CUDA)
  belay_fast_math(numbers numbers $<IF:$<CXX_COMPILER_ID:GNU>,-Ofast,-O3;-ffast-math>)
  belay_fast_math(numbers_reordered numbers -O2 -fassociative-math -fno-signed-zeros -fno-trapping-math)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    belay_fast_math(steps steps -Ofast)
  endif()
endif()
